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
    private_subnets_usable      = bool
    closed_network              = bool
    security_group_id           = string
    endpoints_security_group_id = string
    node_store_policy_arn       = string
    operator_store_policy_arn   = string
    viewer_store_policy_arn     = string
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
}

# Control plane

variable "kubernetes_version" {
  description = "Kubernetes minor version. Dates of support: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html"
  type        = string
  default     = "1.35" # standard support until 2027-03-27

  validation {
    condition     = can(regex("^1\\.[0-9]+$", var.kubernetes_version)) && try(tonumber(split(".", var.kubernetes_version)[1]) >= 35, false)
    error_message = "kubernetes_version must be 1.35 or newer: older versions leave standard support in 2026 and cost six times as much."
  }
}

variable "admin_principals" {
  description = "ARNs of IAM roles or users that administer the cluster. Whoever creates it gets no permission by doing so."
  type        = list(string)

  validation {
    condition     = length(var.admin_principals) > 0 && alltrue([for each in var.admin_principals : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/", each))])
    error_message = "admin_principals must name at least one IAM role or user by its ARN."
  }
}

variable "public_endpoint_cidrs" {
  description = "Addresses that may reach the API server from outside the network. Empty: only the network itself."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for each in var.public_endpoint_cidrs : can(cidrhost(each, 0)) && try(tonumber(split("/", each)[1]) >= 16, false)
    ])
    error_message = "public_endpoint_cidrs must be IPv4 blocks of /16 or smaller, such as 203.0.113.0/24; 0.0.0.0/0 opens the API server to everybody."
  }
}

variable "api_client_security_groups" {
  description = "Security groups inside the network (a bastion, a VPN) that may reach the API server, besides the nodes."
  type        = list(string)
  default     = []
}

variable "log_retention_days" {
  description = "How long CloudWatch keeps the control plane's logs. A year is what audits ask for."
  type        = number
  default     = 365
}

variable "addon_versions" {
  description = "Versions of add-ons by name. Default: the version that EKS recommends for kubernetes_version."
  type        = map(string)
  default     = {}
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
    condition     = var.system_nodes.count >= 1 && var.system_nodes.max >= var.system_nodes.count
    error_message = "system_nodes needs count >= 1 and max >= count."
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
    condition     = alltrue([for group in var.gpu_nodes : group.max >= 1 && group.max <= 64])
    error_message = "gpu_nodes.max must be 1 to 64."
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
}

variable "node_volume_gb" {
  description = "Size of a node's root volume. Images lie there; scratch data lies on the NVMe disks where the type has them."
  type        = number
  default     = 200
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
    condition     = var.karpenter.max_gpus >= 1 && var.karpenter.max_gpus <= 512
    error_message = "karpenter.max_gpus must be 1 to 512: it is what stops a mistake from becoming a bill."
  }
}

# Storage

variable "fsx" {
  description = "FSx for Lustre on the bucket. Charged by the GB of capacity while it exists, used or not. null: none."
  type = object({
    capacity_gb      = optional(number, 1200)
    throughput_mbps  = optional(number, 125) # MB/s per TiB
    zone             = optional(string)      # default: the first zone of the base
    export_to_bucket = optional(bool, true)
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
    condition     = alltrue([for each in values(var.service_accounts) : can(regex("^[a-z0-9-]+/[a-z0-9-]+$", each))])
    error_message = "service_accounts are given as namespace/name."
  }
}
