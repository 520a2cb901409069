# Values that are refused, with the reason.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  admin_principals = ["arn:aws:iam::123456789012:role/platform"]
  base = {
    account_id                  = "123456789012"
    region                      = "us-east-2"
    project                     = "demo"
    owner                       = "ml-team"
    bucket                      = "bucket"
    kms_key_arn                 = "arn:aws:kms:us-east-2:123456789012:key/11111111-2222-3333-4444-555555555555"
    vpc_id                      = "vpc-0123456789abcdef0"
    vpc_cidr                    = "10.42.0.0/16"
    private_subnets             = { us-east-2a = "subnet-0a", us-east-2b = "subnet-0b" }
    private_subnet_networks     = { us-east-2a = "10.42.0.0/20", us-east-2b = "10.42.16.0/20", us-east-2c = "10.42.32.0/20" }
    private_subnets_usable      = true
    closed_network              = false
    security_group_id           = "sg-0123456789abcdef0"
    endpoints_security_group_id = ""
    node_store_policy_arn       = "arn:aws:iam::123456789012:policy/node_store"
    operator_store_policy_arn   = "arn:aws:iam::123456789012:policy/operator_store"
    exports_policy_arn          = "arn:aws:iam::123456789012:policy/exports"
    secrets_policy_arn          = ""
    read_account_policy_arn     = "arn:aws:iam::123456789012:policy/read_account"
    operator_role_arn           = "arn:aws:iam::123456789012:role/operator"
    viewer_role_arn             = "arn:aws:iam::123456789012:role/viewer"
    ecr_repository_url          = "123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain-demo"
    ecr_repository_arn          = "arn:aws:ecr:us-east-2:123456789012:repository/skytrain-demo"
  }
}

run "the_whole_internet" {
  command = plan
  variables {
    public_endpoint_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.public_endpoint_cidrs]
}

run "half_of_the_internet" {
  command = plan
  variables {
    public_endpoint_cidrs = ["203.0.113.0/24", "0.0.0.0/1"]
  }
  expect_failures = [var.public_endpoint_cidrs]
}

run "nobody_administers" {
  command = plan
  variables {
    admin_principals = []
  }
  expect_failures = [var.admin_principals]
}

run "a_version_out_of_support" {
  command = plan
  variables {
    kubernetes_version = "1.32"
  }
  expect_failures = [var.kubernetes_version]
}

run "an_unknown_instance_type" {
  command = plan
  variables {
    gpu_nodes = { spot = { instance_type = "p9.96xlarge", max = 1 } }
  }
  expect_failures = [var.gpu_nodes]
}

run "a_market_that_does_not_exist" {
  command = plan
  variables {
    gpu_nodes = { reserved = { instance_type = "p5.48xlarge", max = 1 } }
  }
  expect_failures = [var.gpu_nodes]
}

run "a_schedule_beyond_the_limit" {
  command = plan
  variables {
    gpu_schedule = { spot = { nodes = 3, start = "0 20 * * *", stop = "0 6 * * *" } }
  }
  expect_failures = [var.gpu_schedule]
}

run "no_limit_on_gpus" {
  command = plan
  variables {
    karpenter = { max_gpus = 100000 }
  }
  expect_failures = [var.karpenter]
}

run "a_capacity_that_fsx_does_not_sell" {
  command = plan
  variables {
    fsx = { capacity_gb = 2000 }
  }
  expect_failures = [var.fsx]
}

run "a_base_whose_private_subnets_reach_nothing" {
  command = plan
  variables {
    base = merge(var.base, { private_subnets_usable = false })
  }
  expect_failures = [var.base]
}

run "a_base_in_one_zone" {
  command = plan
  variables {
    base = merge(var.base, { private_subnets = { us-east-2a = "subnet-0a" } })
  }
  expect_failures = [var.base]
}

run "a_base_written_by_hand" {
  command = plan
  variables {
    base = merge(var.base, { account_id = "demo" })
  }
  expect_failures = [var.base]
}

# Below, each run gives several variables one wrong value each, and every one of them must be refused. Terraform does not
# look at a variable whose validation refers to a wrong one: such pairs are in different runs.

run "values_of_the_wrong_kind" {
  command = plan
  variables {
    kubernetes_version         = "1.035"
    admin_principals           = ["arn:aws:sts::123456789012:assumed-role/platform/ada"]
    public_endpoint_cidrs      = ["::/16"]
    api_client_security_groups = ["bastion"]
    log_retention_days         = 100
    system_nodes               = { count = 1.5 }
    gpu_nodes                  = { spot = { instance_type = "g6e.12xlarge", max = 1.5 } }
    node_volume_gb             = 8
    karpenter                  = { instance_families = [] }
    fsx                        = { zone = "us-east-2z" }
    service_accounts           = { training = "skytrain-train" }
  }
  expect_failures = [
    var.kubernetes_version, var.admin_principals, var.public_endpoint_cidrs, var.api_client_security_groups,
    var.log_retention_days, var.system_nodes, var.gpu_nodes, var.node_volume_gb, var.karpenter, var.fsx, var.service_accounts,
  ]
}

run "values_that_would_be_ignored" {
  command = plan
  variables {
    admin_principals      = ["arn:aws:iam::123456789012:role/operator"]
    public_endpoint_cidrs = ["10.1.0.0/16"]
    addon_versions        = { core-dns = "v1.11.4-eksbuild.2" }
    system_nodes          = { instance_type = "m7g.large" }
    gpu_schedule          = { spot = { nodes = 1, start = "20:00", stop = "06:00" } }
    karpenter             = { instance_families = ["*"] }
    service_accounts      = { training = "skytrain-training/same", operator = "skytrain-training/same" }
  }
  expect_failures = [
    var.admin_principals, var.public_endpoint_cidrs, var.addon_versions, var.system_nodes, var.gpu_schedule, var.karpenter,
    var.service_accounts,
  ]
}

run "values_that_would_fail_late" {
  command = plan
  variables {
    admin_principals      = ["arn:aws:iam::123456789012:role/*"]
    public_endpoint_cidrs = ["203.0.113.7/24"]
    addon_versions        = { coredns = "1.11.4" }
    system_nodes          = { instance_type = "p5.48xlarge" }
    gpu_schedule          = { spot = { nodes = 0, start = "0 20 * * *", stop = "0 6 * * *" } }
    node_volume_gb        = 100.5
    karpenter             = { namespace = "Kube_System" }
    service_accounts      = { serving = "Skytrain/serve" }
  }
  expect_failures = [
    var.admin_principals, var.public_endpoint_cidrs, var.addon_versions, var.system_nodes, var.gpu_schedule,
    var.node_volume_gb, var.karpenter, var.service_accounts,
  ]
}

run "values_at_the_edges" {
  command = plan
  variables {
    public_endpoint_cidrs = ["203.0.0.0/15"]
    system_nodes          = { count = 3, max = 2 }
    gpu_nodes             = { spot = { instance_type = "g6e.12xlarge", max = 1, zone = "us-east-2z" } }
    karpenter             = { max_gpus = 0 }
    fsx                   = { throughput_mbps = 200 }
  }
  expect_failures = [var.public_endpoint_cidrs, var.system_nodes, var.gpu_nodes, var.karpenter, var.fsx]
}

run "too_many_or_the_same_twice" {
  command = plan
  variables {
    public_endpoint_cidrs = [for number in range(41) : "203.0.113.${number}/32"]
    gpu_schedule          = { spot = { nodes = 1, start = "0 20 * * *", stop = "0 20 * * *" } }
  }
  expect_failures = [var.public_endpoint_cidrs, var.gpu_schedule]
}
