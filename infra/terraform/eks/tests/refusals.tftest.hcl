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
    private_subnets_usable      = true
    closed_network              = false
    security_group_id           = "sg-0123456789abcdef0"
    endpoints_security_group_id = ""
    node_store_policy_arn       = "arn:aws:iam::123456789012:policy/node_store"
    operator_store_policy_arn   = "arn:aws:iam::123456789012:policy/operator_store"
    viewer_store_policy_arn     = "arn:aws:iam::123456789012:policy/viewer_store"
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
