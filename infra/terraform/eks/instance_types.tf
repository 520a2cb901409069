# GPUs, EFA interfaces and NVMe disks by instance type, as the planner's catalogue has them: the tests compare the two.

locals {
  instance_types = {
    "g5.xlarge"        = { gpus = 1, efa = 0, nvme = true }
    "g5.2xlarge"       = { gpus = 1, efa = 0, nvme = true }
    "g5.4xlarge"       = { gpus = 1, efa = 0, nvme = true }
    "g5.8xlarge"       = { gpus = 1, efa = 1, nvme = true }
    "g5.16xlarge"      = { gpus = 1, efa = 1, nvme = true }
    "g5.12xlarge"      = { gpus = 4, efa = 1, nvme = true }
    "g5.24xlarge"      = { gpus = 4, efa = 1, nvme = true }
    "g5.48xlarge"      = { gpus = 8, efa = 1, nvme = true }
    "g6.xlarge"        = { gpus = 1, efa = 0, nvme = true }
    "g6.2xlarge"       = { gpus = 1, efa = 0, nvme = true }
    "g6.4xlarge"       = { gpus = 1, efa = 0, nvme = true }
    "g6.8xlarge"       = { gpus = 1, efa = 1, nvme = true }
    "g6.16xlarge"      = { gpus = 1, efa = 1, nvme = true }
    "g6.12xlarge"      = { gpus = 4, efa = 1, nvme = true }
    "g6.24xlarge"      = { gpus = 4, efa = 1, nvme = true }
    "g6.48xlarge"      = { gpus = 8, efa = 1, nvme = true }
    "g6e.xlarge"       = { gpus = 1, efa = 0, nvme = true }
    "g6e.2xlarge"      = { gpus = 1, efa = 0, nvme = true }
    "g6e.4xlarge"      = { gpus = 1, efa = 0, nvme = true }
    "g6e.8xlarge"      = { gpus = 1, efa = 1, nvme = true }
    "g6e.16xlarge"     = { gpus = 1, efa = 1, nvme = true }
    "g6e.12xlarge"     = { gpus = 4, efa = 1, nvme = true }
    "g6e.24xlarge"     = { gpus = 4, efa = 2, nvme = true }
    "g6e.48xlarge"     = { gpus = 8, efa = 4, nvme = true }
    "g7e.2xlarge"      = { gpus = 1, efa = 0, nvme = true }
    "g7e.4xlarge"      = { gpus = 1, efa = 0, nvme = true }
    "g7e.8xlarge"      = { gpus = 1, efa = 1, nvme = true }
    "g7e.12xlarge"     = { gpus = 2, efa = 1, nvme = true }
    "g7e.24xlarge"     = { gpus = 4, efa = 2, nvme = true }
    "g7e.48xlarge"     = { gpus = 8, efa = 4, nvme = true }
    "p4d.24xlarge"     = { gpus = 8, efa = 4, nvme = true }
    "p4de.24xlarge"    = { gpus = 8, efa = 4, nvme = true }
    "p5.4xlarge"       = { gpus = 1, efa = 1, nvme = true }
    "p5.48xlarge"      = { gpus = 8, efa = 32, nvme = true }
    "p5e.48xlarge"     = { gpus = 8, efa = 32, nvme = true }
    "p5en.48xlarge"    = { gpus = 8, efa = 16, nvme = true }
    "p6-b200.48xlarge" = { gpus = 8, efa = 8, nvme = true }
    "p6-b300.48xlarge" = { gpus = 8, efa = 16, nvme = true }
  }

  gpus_of_type = { for name, each in local.instance_types : name => each.gpus }
  gpu_families = distinct([for name in keys(local.instance_types) : split(".", name)[0]])
}
