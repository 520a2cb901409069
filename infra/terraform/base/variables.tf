variable "region" {
  description = "The AWS region. Training machines must stand beside their data, so one base serves one region."
  type        = string
}

variable "project" {
  description = "Name of the project: the value of the tag skytrain:project and the prefix of its objects."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.project))
    error_message = "project must have 3 to 24 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "owner" {
  description = "Who answers for the base and its bill: the value of the tag skytrain:owner."
  type        = string

  validation {
    condition     = can(regex("^[\\p{L}\\p{N} _.:/=+@-]{1,256}$", var.owner)) && !startswith(lower(var.owner), "aws:")
    error_message = "owner must have 1 to 256 letters, digits, spaces or . : / = + - @ _, and not begin with aws: IAM takes no other tags."
  }
}

variable "bucket_name" {
  description = "Name of the bucket. Default: skytrain-PROJECT-ACCOUNT-REGION."
  type        = string
  default     = null
}

variable "delete_data_on_destroy" {
  description = "Let `terraform destroy` delete a bucket and a repository that still hold data. Off: it refuses."
  type        = bool
  default     = false
}

# Network

variable "vpc_cidr" {
  description = "Addresses of the network. Each of the six subnets takes a sixteenth."
  type        = string
  default     = "10.42.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.vpc_cidr, 4, 5)) && try(tonumber(split("/", var.vpc_cidr)[1]) <= 20, false)
    error_message = "vpc_cidr must be an IPv4 block of /16 to /20, such as 10.42.0.0/16."
  }
}

variable "zones" {
  description = "Names of one to three availability zones. Default: the first three of the region, or all it has."
  type        = list(string)
  default     = null

  validation {
    condition     = var.zones == null || try(length(var.zones) > 0 && length(var.zones) <= 3 && distinct(var.zones) == var.zones, false)
    error_message = "zones must name one to three different availability zones."
  }
}

variable "nat_gateway" {
  description = "One NAT gateway, so that private subnets reach the internet. Costs money while it exists."
  type        = bool
  default     = true
}

variable "interface_endpoints" {
  description = "Interface endpoints for the AWS services that a machine calls. Without a NAT: a closed network."
  type        = bool
  default     = false
}

variable "interface_endpoint_zones" {
  description = "In how many zones each interface endpoint has an address. Each costs; one serves all three zones."
  type        = number
  default     = 1

  validation {
    condition     = contains([1, 2, 3], var.interface_endpoint_zones)
    error_message = "interface_endpoint_zones must be 1, 2 or 3."
  }
}

variable "flow_logs" {
  description = "Record every connection of the network in a log group. Charged per GB."
  type        = bool
  default     = false
}

# People and permissions

variable "operator_principals" {
  description = "ARNs that may assume the operator role. Default: whom the account's own IAM policies allow."
  type        = list(string)
  default     = []
}

variable "viewer_principals" {
  description = "ARNs that may assume the viewer role. Default: whom the account's own IAM policies allow."
  type        = list(string)
  default     = []
}

variable "require_mfa" {
  description = "Operators must have signed in with a second factor. Off for SSO, which does not report it."
  type        = bool
  default     = false
}

variable "instance_families" {
  description = "Instance families that the operator may start, as in the part of the type before the dot."
  type        = list(string)
  default = [
    "g5", "g6", "g6e", "g7e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300",
    "c7i", "m7i", "r7i",
  ]

  validation {
    condition     = length(var.instance_families) > 0 && alltrue([for each in var.instance_families : can(regex("^[a-z][a-z0-9-]*$", each))])
    error_message = "instance_families must name families such as g6e or p5, without a size and without wildcards."
  }
}

variable "most_machines" {
  description = "The most machines that one Auto Scaling group of an operator may have."
  type        = number
  default     = 64

  validation {
    condition     = var.most_machines >= 1 && floor(var.most_machines) == var.most_machines
    error_message = "most_machines must be a whole number of at least 1."
  }
}

variable "shared_roles" {
  description = "Let machines that a version before roles of runs has launched go on: all of them may write all runs."
  type        = bool
  default     = false
}

variable "node_writes" {
  description = "Folders of the project that machines of runs may write: of runs and sweeps their own, of others all. Those of `launch prepare` also write data."
  type        = list(string)
  default     = ["runs", "sweeps"]

  validation {
    condition     = length(var.node_writes) > 0 && alltrue([for each in var.node_writes : can(regex("^[a-z][a-z0-9-]*$", each))])
    error_message = "node_writes must name folders directly under the project, such as runs."
  }

  validation { # what machines and people run is written by operators only
    condition     = length(setintersection(var.node_writes, ["bundles", "images", "launches", "models"])) == 0
    error_message = "node_writes must not name bundles, images, launches or models: others run what is there."
  }
}

variable "readable_buckets" {
  description = "Names of other buckets that operators and machines may read, such as commoncrawl."
  type        = list(string)
  default     = []
}

variable "sagemaker" {
  description = "Let the operator run SageMaker training jobs with the node role."
  type        = bool
  default     = false
}

variable "aws_images_account" {
  description = "The account whose registry holds AWS's own PyTorch containers in this region, for SageMaker."
  type        = string
  default     = "763104351884"
}

variable "emr" {
  description = "Let the operator run EMR Serverless and EMR clusters for data preparation."
  type        = bool
  default     = false
}

variable "secrets" {
  description = "Secrets that jobs of the project may get: names of Secrets Manager, or ssm:/NAME of parameters."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.secrets : can(regex("^(ssm:/)?[A-Za-z0-9_.@+=-]+(/[A-Za-z0-9_.@+=-]+)*$", each))])
    error_message = "secrets must be whole names, such as skytrain/hf or ssm:/skytrain/hf, without wildcards and keys (#)."
  }
}

# Records and money

variable "log_retention_days" {
  description = "How long CloudWatch keeps log lines. Runs keep their own logs in the store."
  type        = number
  default     = 30
}

variable "budget_usd_per_month" {
  description = "Monthly budget whose alarm warns at 50, 80 and 100% and at 100% forecast. 0: no budget."
  type        = number
  default     = 200

  validation {
    condition     = var.budget_usd_per_month >= 0
    error_message = "budget_usd_per_month must not be negative."
  }
}

variable "budget_emails" {
  description = "Addresses that the budget's alarm writes to (at most 10), besides the SNS topic."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.budget_emails) <= 10
    error_message = "budget_emails takes at most 10 addresses."
  }
}

variable "budget_of_project_only" {
  description = "Count only what is tagged with the project. Needs skytrain:project active as a cost allocation tag."
  type        = bool
  default     = false
}

variable "cloudtrail" {
  description = "Record the account's API calls and the bucket's object calls in a bucket of their own."
  type        = bool
  default     = false
}
