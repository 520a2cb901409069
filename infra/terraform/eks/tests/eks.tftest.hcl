# The cluster against a mocked provider: no account, no network. `terraform init && terraform test`

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
    bucket                      = "skytrain-demo-123456789012-us-east-2"
    kms_key_arn                 = "arn:aws:kms:us-east-2:123456789012:key/11111111-2222-3333-4444-555555555555"
    vpc_id                      = "vpc-0123456789abcdef0"
    vpc_cidr                    = "10.42.0.0/16"
    private_subnets             = { us-east-2a = "subnet-0a", us-east-2b = "subnet-0b", us-east-2c = "subnet-0c" }
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
    operator_role_arn           = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-operator"
    viewer_role_arn             = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-viewer"
    ecr_repository_url          = "123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain-demo"
    ecr_repository_arn          = "arn:aws:ecr:us-east-2:123456789012:repository/skytrain-demo"
  }
}

run "default" {
  command = apply

  # Control plane

  assert {
    condition = (
      aws_eks_cluster.main.vpc_config[0].endpoint_private_access && !aws_eks_cluster.main.vpc_config[0].endpoint_public_access
    )
    error_message = "The API server must answer inside the network only."
  }

  assert {
    condition     = toset(aws_eks_cluster.main.enabled_cluster_log_types) == toset(["api", "audit", "authenticator", "controllerManager", "scheduler"])
    error_message = "Every kind of control-plane log must be kept."
  }

  assert {
    condition     = aws_cloudwatch_log_group.cluster.kms_key_id == aws_kms_key.cluster.arn && aws_cloudwatch_log_group.cluster.retention_in_days >= 365
    error_message = "Control-plane logs must be encrypted and kept for a year."
  }

  assert {
    condition = (
      aws_eks_cluster.main.encryption_config[0].provider[0].key_arn == aws_kms_key.cluster.arn &&
      contains(aws_eks_cluster.main.encryption_config[0].resources, "secrets") && aws_kms_key.cluster.enable_key_rotation
    )
    error_message = "Secrets must be encrypted with a key of ours that rotates."
  }

  assert {
    condition = (
      aws_eks_cluster.main.access_config[0].authentication_mode == "API" &&
      !aws_eks_cluster.main.access_config[0].bootstrap_cluster_creator_admin_permissions &&
      keys(aws_eks_access_entry.admin) == ["arn:aws:iam::123456789012:role/platform"]
    )
    error_message = "Administrators must be named; creating the cluster must give nobody power over it."
  }

  assert {
    condition     = aws_eks_cluster.main.upgrade_policy[0].support_type == "STANDARD"
    error_message = "The cluster must not slide into extended support."
  }

  # Nodes

  assert {
    condition = alltrue([
      for group in aws_eks_node_group.gpu :
      group.scaling_config[0].min_size == 0 && group.scaling_config[0].desired_size == 0 && group.ami_type == "AL2023_x86_64_NVIDIA" &&
      length(group.subnet_ids) == 1
    ])
    error_message = "GPU groups must start empty, in one zone, with the NVIDIA image."
  }

  assert {
    condition     = aws_eks_node_group.gpu["spot"].capacity_type == "SPOT" && aws_eks_node_group.gpu["on-demand"].capacity_type == "ON_DEMAND"
    error_message = "The markets must be what the groups are called."
  }

  assert {
    condition = alltrue([
      for group in aws_eks_node_group.gpu : contains([for taint in group.taint : "${taint.key}=${taint.value}:${taint.effect}"], "nvidia.com/gpu=true:NO_SCHEDULE")
    ])
    error_message = "Only pods that tolerate GPUs may stand on GPU nodes."
  }

  assert {
    condition = (
      contains([for taint in aws_eks_node_group.gpu["spot"].taint : taint.key], "skytrain/spot") &&
      !contains([for taint in aws_eks_node_group.gpu["on-demand"].taint : taint.key], "skytrain/spot")
    )
    error_message = "Only pods that tolerate interruptions may stand on spot nodes."
  }

  assert {
    condition = (
      length(aws_launch_template.gpu["on-demand"].network_interfaces) == 5 &&
      length([for each in aws_launch_template.gpu["on-demand"].network_interfaces : each if each.interface_type == "efa-only"]) == 4 &&
      aws_launch_template.gpu["on-demand"].network_interfaces[0].interface_type == "interface"
    )
    error_message = "p4d.24xlarge has four EFA devices beside its interface for IP."
  }

  assert {
    condition = alltrue(flatten([
      for template in aws_launch_template.gpu : [for each in template.network_interfaces : contains(each.security_groups, "sg-0123456789abcdef0")]
    ]))
    error_message = "Every interface needs the base's group: EFA's rules to itself are there."
  }

  assert {
    condition     = aws_launch_template.gpu["on-demand"].placement[0].group_name == aws_placement_group.gpu["on-demand"].name && aws_placement_group.gpu["on-demand"].strategy == "cluster"
    error_message = "Nodes with EFA must stand close to each other."
  }

  assert {
    condition = (
      strcontains(base64decode(aws_launch_template.gpu["on-demand"].user_data), "LimitMEMLOCK=infinity") &&
      strcontains(base64decode(aws_launch_template.gpu["on-demand"].user_data), "\"strategy\": \"RAID0\"")
    )
    error_message = "EFA needs locked memory, NVMe disks their array."
  }

  assert {
    condition = alltrue([
      for template in [aws_launch_template.system, aws_launch_template.gpu["spot"], aws_launch_template.gpu["on-demand"]] :
      template.metadata_options[0].http_tokens == "required" && template.metadata_options[0].http_put_response_hop_limit == 1 &&
      tobool(template.block_device_mappings[0].ebs[0].encrypted) && template.block_device_mappings[0].ebs[0].kms_key_id == var.base.kms_key_arn
    ])
    error_message = "IMDSv2 only, unreachable from pods; volumes encrypted with the base's key."
  }

  # Pods

  assert {
    condition = {
      for name, each in aws_eks_pod_identity_association.pod : name => "${each.namespace}/${each.service_account}"
    } == { training = "skytrain-training/skytrain-train", operator = "skytrain-training/skytrain-operator", serving = "skytrain-serving/skytrain-serve" }
    error_message = "The service accounts are those of infra/kubernetes."
  }

  assert {
    condition = {
      for name, each in aws_iam_role_policy_attachment.pod : name => each.policy_arn
      } == {
      training-store   = var.base.node_store_policy_arn
      operator-store   = var.base.operator_store_policy_arn
      operator-account = var.base.read_account_policy_arn
      serving-store    = var.base.exports_policy_arn
    }
    error_message = "Training writes runs, serving reads exported models, the operator launches and looks at prices: the base's policies and nothing else."
  }

  assert {
    condition = alltrue([
      for role in concat(values(aws_iam_role.pod), values(aws_iam_role.driver), [aws_iam_role.karpenter]) :
      jsondecode(role.assume_role_policy).Statement[0].Principal.Service == "pods.eks.amazonaws.com" &&
      jsondecode(role.assume_role_policy).Statement[0].Condition.ArnEquals["aws:SourceArn"] == "arn:aws:eks:us-east-2:123456789012:cluster/skytrain-demo"
    ])
    error_message = "Pods of this cluster only may take a pod's role."
  }

  # Add-ons

  assert {
    condition = toset(concat(keys(aws_eks_addon.before_nodes), keys(aws_eks_addon.main))) == toset([
      "vpc-cni", "kube-proxy", "eks-pod-identity-agent", "coredns", "metrics-server", "aws-ebs-csi-driver",
      "eks-node-monitoring-agent", "aws-fsx-csi-driver",
    ])
    error_message = "The managed add-ons."
  }

  assert {
    condition     = jsondecode(aws_eks_addon.before_nodes["vpc-cni"].configuration_values).enableNetworkPolicy == "true"
    error_message = "NetworkPolicies must be enforced."
  }

  # Karpenter

  assert {
    condition = (
      length([for each in jsondecode(aws_iam_policy.karpenter_nodes.policy).Statement : each if each.Effect == "Deny" && try(length(each.Condition.StringNotLike["ec2:InstanceType"]) == 4, false)]) == 1 &&
      !strcontains(aws_iam_policy.karpenter_nodes.policy, "\"Resource\":\"*\"") && length(aws_iam_policy.karpenter_nodes.policy) <= 6144
    )
    error_message = "Karpenter may start the named families only, on named resources, by a policy that IAM takes."
  }

  assert {
    condition     = toset(keys(aws_cloudwatch_event_rule.karpenter)) == toset(["spot-interruption", "rebalance", "state-change", "health", "capacity-reservation"])
    error_message = "Karpenter must hear of every kind of interruption."
  }

  assert {
    condition     = length([for each in jsondecode(aws_sqs_queue_policy.karpenter.policy).Statement : each if each.Effect == "Allow" && contains(keys(each), "Condition")]) == 1
    error_message = "Only our rules may write to the queue."
  }

  # Storage

  assert {
    condition = (
      aws_fsx_lustre_file_system.main[0].deployment_type == "PERSISTENT_2" && aws_fsx_lustre_file_system.main[0].kms_key_id == var.base.kms_key_arn &&
      aws_fsx_data_repository_association.main["tokens"].data_repository_path == "s3://skytrain-demo-123456789012-us-east-2/demo/tokens" &&
      length(aws_fsx_data_repository_association.main) <= 8
    )
    error_message = "FSx is persistent, encrypted and on the bucket."
  }

  assert {
    condition = { for folder, each in aws_fsx_data_repository_association.main : folder => each.s3[0].auto_export_policy[0].events if length(each.s3[0].auto_export_policy) > 0 } == {
      runs = tolist(["NEW", "CHANGED"]), sweeps = tolist(["NEW", "CHANGED"])
    }
    error_message = "FSx writes back what pods may write to S3 themselves, and a deletion never reaches the bucket."
  }

  assert {
    condition = alltrue([
      for rule in merge(aws_vpc_security_group_ingress_rule.fsx, aws_vpc_security_group_egress_rule.fsx) :
      rule.cidr_ipv4 == null && contains([988, 1018], rule.from_port) && contains([988, 1023], rule.to_port)
    ]) && length(aws_vpc_security_group_ingress_rule.fsx) == 4
    error_message = "FSx talks to nodes and to itself, on Lustre's ports."
  }

  assert {
    condition     = strcontains(output.cluster_env, "FSX_MOUNT=abcdefgh\n") && strcontains(output.cluster_env, "MAX_GPUS=16\n") && strcontains(output.cluster_env, "FAMILIES=g6,g6e,p4d,p5,p5,p5,p5,p5\n")
    error_message = "Manifests need the file system's names and the limit."
  }
}

run "everything" {
  command = apply

  variables {
    public_endpoint_cidrs      = ["203.0.113.0/24"]
    api_client_security_groups = ["sg-0ba5710000000000"]
    cloudwatch_observability   = true
    gpu_nodes                  = { on-demand = { instance_type = "p5.48xlarge", max = 4, zone = "us-east-2b" }, spot = { instance_type = "g6.xlarge", max = 8 } }
    gpu_schedule               = { spot = { nodes = 4, start = "0 20 * * 1-5", stop = "0 6 * * *" } }
    addon_versions             = { coredns = "v9.9.9-eksbuild.9" }
    base                       = merge(var.base, { closed_network = true, endpoints_security_group_id = "sg-0endpoints0000000" })
  }

  assert {
    condition     = aws_eks_cluster.main.vpc_config[0].endpoint_public_access && aws_eks_cluster.main.vpc_config[0].endpoint_private_access && aws_eks_cluster.main.vpc_config[0].public_access_cidrs == toset(["203.0.113.0/24"])
    error_message = "The public endpoint opens to the named addresses, beside the private one."
  }

  assert {
    condition     = length(aws_launch_template.gpu["on-demand"].network_interfaces) == 33 && aws_eks_node_group.gpu["on-demand"].subnet_ids == toset(["subnet-0b"])
    error_message = "p5.48xlarge has 32 EFA devices, in the zone that was asked for."
  }

  assert {
    condition = (
      length(aws_launch_template.gpu["spot"].network_interfaces) == 1 && length(aws_launch_template.gpu["spot"].placement) == 0 &&
      !contains(keys(aws_placement_group.gpu), "spot") && !strcontains(base64decode(aws_launch_template.gpu["spot"].user_data), "MEMLOCK")
    )
    error_message = "A type without EFA gets neither EFA devices nor a placement group."
  }

  assert {
    condition     = aws_autoscaling_schedule.start["spot"].desired_capacity == 4 && aws_autoscaling_schedule.stop["spot"].desired_capacity == 0
    error_message = "The schedule starts nodes and ends all of them."
  }

  assert {
    condition     = aws_eks_addon.main["coredns"].addon_version == "v9.9.9-eksbuild.9" && contains(keys(aws_eks_addon.main), "amazon-cloudwatch-observability")
    error_message = "Versions can be pinned, CloudWatch switched on."
  }

  assert {
    condition     = toset(keys(aws_vpc_endpoint.interface)) == toset(["eks", "eks-auth", "elasticloadbalancing", "sqs"])
    error_message = "A closed network needs the endpoints that the cluster calls."
  }

  assert {
    condition     = length(aws_iam_policy.karpenter_nodes.policy) <= 6144
    error_message = "AWS refuses a managed policy of more than 6144 characters."
  }
}

run "no_file_system" {
  command = apply

  variables {
    fsx = null
  }

  assert {
    condition     = length(aws_fsx_lustre_file_system.main) == 0 && !contains(keys(aws_eks_addon.main), "aws-fsx-csi-driver") && output.fsx_file_system_id == null
    error_message = "Without FSx there is neither a file system nor a driver."
  }
}

run "long_names" {
  command = plan

  variables { # the longest names of a project and of a region
    cloudwatch_observability = true
    base                     = merge(var.base, { project = "a-name-of-24-letters-abc", region = "us-isof-south-1", secrets_policy_arn = "arn:aws:iam::123456789012:policy/secrets" })
  }

  assert {
    condition = alltrue([
      for role in concat(values(aws_iam_role.pod), values(aws_iam_role.driver), [aws_iam_role.karpenter, aws_iam_role.node, aws_iam_role.cluster]) :
      length(role.name) <= 64
    ])
    error_message = "IAM takes role names of 64 characters."
  }

  assert {
    condition     = length(distinct(values(local.role_names))) == length(local.role_names) && length(local.role_names) >= 9
    error_message = "Two roles cannot have one name."
  }

  assert {
    condition     = aws_iam_role_policy_attachment.pod["training-secrets"].policy_arn == var.base.secrets_policy_arn
    error_message = "Training pods read the project's secrets; no other pods do."
  }
}

run "china" {
  command = plan

  override_data {
    target = data.aws_partition.current
    values = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }

  variables {
    base = merge(var.base, { region = "cn-northwest-1" })
  }

  assert {
    condition     = toset(jsondecode(aws_iam_role.node.assume_role_policy).Statement[0].Principal.Service) == toset(["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])
    error_message = "EKS takes roles of nodes in China that trust EC2 by its name there."
  }
}
