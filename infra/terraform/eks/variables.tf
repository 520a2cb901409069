variable "base" {
  description = "The base that the cluster stands in: `terraform -chdir=../base output -json for_eks > base.auto.tfvars.json`."
  type = object({
    account_id                  = string
    region                      = string
    project                     = string
    owner                       = string
    bucket                      = string
    kms_key_arn                 = string
    vpc_id                      = string
    vpc_cidr                    = string
    private_subnets             = map(string)
    private_subnet_networks     = map(string)
    private_subnets_usable      = bool
    closed_network              = bool
    security_group_id           = string
    endpoints_security_group_id = string
    node_store_policy_arn       = string
    operator_store_policy_arn   = string
    exports_policy_arn          = string
    secrets_policy_arn          = string
    read_account_policy_arn     = string
    operator_role_arn           = string
    viewer_role_arn             = string
    ecr_repository_url          = string
    ecr_repository_arn          = string
  })

  validation {
    condition     = var.base.private_subnets_usable
    error_message = "Nodes stand in private subnets: the base needs nat_gateway = true or interface_endpoints = true."
  }

  validation {
    condition     = length(var.base.private_subnets) >= 2
    error_message = "EKS wants subnets in at least two zones; the base has one."
  }

  validation {
    condition = (
      can(regex("^[0-9]{12}$", var.base.account_id)) && can(cidrhost(var.base.vpc_cidr, 0)) &&
      can(regex("^[a-z][a-z0-9-]*$", var.base.project)) && can(regex("^arn:aws[a-z-]*:kms:", var.base.kms_key_arn))
    )
    error_message = "base is not what the base writes: terraform -chdir=../base output -json for_eks > base.auto.tfvars.json."
  }
}

# Control plane

variable "kubernetes_version" {
  description = "Kubernetes minor version. Dates of support: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html"
  type        = string
  default     = "1.35" # standard support until 2027-03-27

  validation {
    condition     = can(regex("^1\\.[1-9][0-9]$", var.kubernetes_version)) && try(tonumber(split(".", var.kubernetes_version)[1]) >= 35, false)
    error_message = "kubernetes_version must be 1.35 or newer: older versions leave standard support in 2026 and cost six times as much."
  }
}

variable "admin_principals" {
  description = "ARNs of IAM roles or users that administer the cluster. Whoever creates it gets no permission by doing so."
  type        = list(string)

  validation {
    condition     = length(var.admin_principals) > 0 && alltrue([for each in var.admin_principals : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[^*]+$", each))])
    error_message = "admin_principals must name at least one IAM role or user by its ARN: not a session, a group, a wildcard or the account's root."
  }

  validation {
    condition     = length(setintersection(var.admin_principals, [var.base.operator_role_arn, var.base.viewer_role_arn])) == 0
    error_message = "admin_principals names the operator or viewer role of the base: these have access of their own, and EKS takes one entry a principal."
  }
}

variable "public_endpoint_cidrs" {
  description = "Addresses that may reach the API server from outside the network. Empty: only the network itself."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for each in var.public_endpoint_cidrs :
      can(regex("^[0-9.]+/(1[6-9]|2[0-9]|3[0-2])$", each)) && try(cidrsubnet(each, 0, 0) == each, false)
    ])
    error_message = "public_endpoint_cidrs must be IPv4 blocks of /16 to /32 that begin at their first address, such as 203.0.113.0/24; 0.0.0.0/0 opens the API server to everybody."
  }

  validation {
    condition = alltrue([
      for each in var.public_endpoint_cidrs :
      !can(regex("^(0|10|127|22[4-9]|2[3-5][0-9]|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])|169\\.254|172\\.(1[6-9]|2[0-9]|3[01])|192\\.168)\\.", each))
    ])
    error_message = "public_endpoint_cidrs has private or reserved addresses, which never arrive from the internet: inside the network use api_client_security_groups."
  }

  validation {
    condition     = length(var.public_endpoint_cidrs) <= 40
    error_message = "EKS takes at most 40 public_endpoint_cidrs."
  }
}

variable "api_client_security_groups" {
  description = "Security groups inside the network (a bastion, a VPN) that may reach the API server, besides the nodes."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.api_client_security_groups : can(regex("^sg-[0-9a-f]{8,17}$", each))])
    error_message = "api_client_security_groups must be ids of security groups, such as sg-0123456789abcdef0."
  }
}

variable "log_retention_days" {
  description = "How long CloudWatch keeps the control plane's logs. A year is what audits ask for."
  type        = number
  default     = 365

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days must be a period that CloudWatch has: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827 or more years up to 3653."
  }
}

variable "addon_versions" {
  description = "Versions of add-ons by name. Default: the version that EKS recommends for kubernetes_version."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.addon_versions) : contains(concat(keys(local.addons), ["aws-fsx-csi-driver", "amazon-cloudwatch-observability"]), name)])
    error_message = "addon_versions names an add-on that the cluster does not have; `terraform output addon_versions` lists them."
  }

  validation {
    condition     = alltrue([for version in values(var.addon_versions) : can(regex("^v[0-9]+\\.[0-9]+\\.[0-9]+-eksbuild\\.[0-9]+$", version))])
    error_message = "addon_versions must be versions of EKS, such as v1.11.4-eksbuild.2: aws eks describe-addon-versions --addon-name NAME."
  }
}

variable "cloudwatch_observability" {
  description = "CloudWatch Container Insights with GPU metrics. Charged by metric and by GB of logs."
  type        = bool
  default     = false
}

# Nodes

variable "system_nodes" {
  description = "CPU nodes for CoreDNS, Karpenter, Prometheus and Grafana."
  type = object({
    instance_type = optional(string, "m7i.large")
    count         = optional(number, 2)
    max           = optional(number, 4)
  })
  default = {}

  validation {
    condition     = try(var.system_nodes.count >= 1 && var.system_nodes.max >= var.system_nodes.count && var.system_nodes.max <= 100 && floor(var.system_nodes.count) == var.system_nodes.count && floor(var.system_nodes.max) == var.system_nodes.max, false)
    error_message = "system_nodes needs whole numbers: count >= 1, max >= count, max <= 100."
  }

  validation {
    condition = try(
      can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.system_nodes.instance_type)) &&
      !can(regex("^([a-z]+[0-9]+g|a1)[a-z]*\\.", var.system_nodes.instance_type)) &&
      !contains(keys(local.gpus_of_type), var.system_nodes.instance_type),
      false,
    )
    error_message = "system_nodes.instance_type must be an x86 type without GPUs, such as m7i.large: the nodes' image is for x86 CPUs."
  }
}

variable "gpu_nodes" {
  description = "GPU node groups by market: on-demand and spot. Each has one instance type, stands in one zone and starts empty."
  type = map(object({
    instance_type = string
    max           = number
    zone          = optional(string) # default: the first zone of the base
  }))
  default = {
    on-demand = { instance_type = "p4d.24xlarge", max = 2 }
    spot      = { instance_type = "g6e.12xlarge", max = 2 }
  }

  validation {
    condition     = alltrue([for market in keys(var.gpu_nodes) : contains(["on-demand", "spot"], market)])
    error_message = "gpu_nodes has the keys on-demand and spot."
  }

  validation {
    condition     = alltrue([for group in var.gpu_nodes : contains(keys(local.gpus_of_type), group.instance_type)])
    error_message = "gpu_nodes names an instance type that instance_types.tf does not list: add it there with its GPUs and EFA interfaces."
  }

  validation {
    condition     = alltrue([for group in var.gpu_nodes : group.max >= 1 && group.max <= 64 && floor(group.max) == group.max])
    error_message = "gpu_nodes.max must be a whole number from 1 to 64."
  }

  validation {
    condition     = alltrue([for group in var.gpu_nodes : group.zone == null || contains(keys(var.base.private_subnets), coalesce(group.zone, "-"))])
    error_message = "gpu_nodes.zone must be a zone in which the base has a private subnet, such as us-east-2a."
  }
}

variable "gpu_schedule" {
  description = "Cron times (UTC) at which a GPU node group grows to `nodes` and shrinks to zero again."
  type = map(object({
    nodes = number
    start = string
    stop  = string
  }))
  default = {}

  validation {
    condition     = alltrue([for market, each in var.gpu_schedule : contains(keys(var.gpu_nodes), market) && each.nodes <= try(var.gpu_nodes[market].max, 0)])
    error_message = "gpu_schedule names groups of gpu_nodes, with no more nodes than their max."
  }

  validation {
    condition     = alltrue([for each in var.gpu_schedule : each.nodes >= 1 && floor(each.nodes) == each.nodes])
    error_message = "gpu_schedule.nodes must be a whole number, 1 or more; leave the group out for none."
  }

  validation {
    condition = alltrue([
      for each in var.gpu_schedule : each.start != each.stop && alltrue([
        for time in [each.start, each.stop] : can(regex("^([0-9*,/-]+ ){3}[0-9A-Za-z*,/-]+ [0-9A-Za-z*,/-]+$", time))
      ])
    ])
    error_message = "gpu_schedule.start and stop must be two different cron times of five fields, such as \"0 20 * * 1-5\": minute, hour, day, month, weekday."
  }
}

variable "node_volume_gb" {
  description = "Size of a node's root volume. Images lie there; scratch data lies on the NVMe disks where the type has them."
  type        = number
  default     = 200

  validation {
    condition     = var.node_volume_gb >= 50 && var.node_volume_gb <= 16384 && floor(var.node_volume_gb) == var.node_volume_gb
    error_message = "node_volume_gb must be a whole number from 50, which the training image needs, to 16384."
  }
}

# Karpenter

variable "karpenter" {
  description = "Karpenter: GPU nodes that appear when a pod waits and go when it ends. max_gpus is a hard limit: of each node pool, and of all training pods together."
  type = object({
    max_gpus          = optional(number, 16)
    instance_families = optional(list(string), ["g6", "g6e", "p4d", "p5"])
    namespace         = optional(string, "kube-system")
  })
  default = {}

  validation {
    condition     = try(var.karpenter.max_gpus >= 1 && var.karpenter.max_gpus <= 512 && floor(var.karpenter.max_gpus) == var.karpenter.max_gpus, false)
    error_message = "karpenter.max_gpus must be a whole number from 1 to 512: it is what stops a mistake from becoming a bill."
  }

  validation {
    condition     = try(length(var.karpenter.instance_families) > 0 && length(var.karpenter.instance_families) <= 8 && alltrue([for family in var.karpenter.instance_families : contains(local.gpu_families, family)]), false)
    error_message = "karpenter.instance_families must name one to eight families of instance_types.tf, such as g6e, and no pattern: Karpenter may start no other."
  }

  validation {
    condition     = try(can(regex("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", var.karpenter.namespace)), false)
    error_message = "karpenter.namespace must be a name of Kubernetes: small letters, digits and -."
  }
}

# Storage

variable "fsx" {
  description = "FSx for Lustre on the bucket. Charged by the GB of capacity while it exists, used or not. null: none."
  type = object({
    capacity_gb      = optional(number, 1200)
    throughput_mbps  = optional(number, 125) # MB/s per TiB
    zone             = optional(string)      # default: the first zone of the base
    export_to_bucket = optional(bool, true)  # what pods write to runs and sweeps; nothing else ever goes back
  })
  default = {}

  validation {
    condition     = var.fsx == null || try(var.fsx.capacity_gb == 1200 || (var.fsx.capacity_gb >= 2400 && var.fsx.capacity_gb % 2400 == 0), false)
    error_message = "fsx.capacity_gb must be 1200, 2400 or a multiple of 2400."
  }

  validation {
    condition     = var.fsx == null || try(contains([125, 250, 500, 1000], var.fsx.throughput_mbps), false)
    error_message = "fsx.throughput_mbps must be 125, 250, 500 or 1000 MB/s per TiB."
  }

  validation {
    condition     = var.fsx == null || try(var.fsx.zone == null || contains(keys(var.base.private_subnets), coalesce(var.fsx.zone, "-")), false)
    error_message = "fsx.zone must be a zone in which the base has a private subnet, such as us-east-2a."
  }
}

# Kubernetes names: those of infra/kubernetes

variable "service_accounts" {
  description = "Service accounts that get AWS permissions, as namespace/name."
  type = object({
    training = optional(string, "skytrain-training/skytrain-train")
    operator = optional(string, "skytrain-training/skytrain-operator")
    serving  = optional(string, "skytrain-serving/skytrain-serve")
  })
  default = {}

  validation {
    condition     = alltrue([for each in values(var.service_accounts) : can(regex("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", each))])
    error_message = "service_accounts are given as namespace/name, both of small letters, digits and -."
  }

  validation {
    condition     = length(distinct(values(var.service_accounts))) == 3
    error_message = "service_accounts must be three different ones: each has the permissions of one kind of pod."
  }
}
