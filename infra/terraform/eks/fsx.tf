# FSx for Lustre over the bucket: files appear when they appear in S3 and are read on first use; what jobs write to runs
# and sweeps goes back. Charged by capacity while it exists: `terraform destroy -target` removes it alone.

locals {
  # FSx writes to the bucket with a role of its own, whichever pod wrote the file. So only the folders that the base lets
  # training pods write (its node_writes) go back: a pod can change neither corpora nor tokens nor exported models in S3.
  fsx_folders = {
    corpora     = "read"
    evaluations = "read"
    exports     = "read"
    tokenizers  = "read"
    tokens      = "read"
    runs        = "write"
    sweeps      = "write"
  }
}

resource "aws_fsx_lustre_file_system" "main" {
  count = var.fsx == null ? 0 : 1

  deployment_type             = "PERSISTENT_2"
  storage_type                = "SSD"
  storage_capacity            = var.fsx.capacity_gb
  per_unit_storage_throughput = var.fsx.throughput_mbps
  file_system_type_version    = "2.15"
  data_compression_type       = "LZ4"
  subnet_ids                  = [var.base.private_subnets[coalesce(var.fsx.zone, local.zones[0])]]
  security_group_ids          = [aws_security_group.fsx[0].id]
  kms_key_id                  = var.base.kms_key_arn

  automatic_backup_retention_days = 0 # the bucket is the copy
  skip_final_backup               = true

  metadata_configuration {
    mode = "AUTOMATIC"
  }

  tags = { Name = local.name }
}

# One association a folder: paths and prefixes of two may not overlap, and a file system has at most eight.
resource "aws_fsx_data_repository_association" "main" {
  for_each = var.fsx == null ? {} : local.fsx_folders

  file_system_id       = aws_fsx_lustre_file_system.main[0].id
  file_system_path     = "/${var.base.project}/${each.key}"
  data_repository_path = "s3://${var.base.bucket}/${var.base.project}/${each.key}"

  batch_import_meta_data_on_create = true
  delete_data_in_filesystem        = true # with the association; the bucket keeps everything

  s3 {
    auto_import_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
    dynamic "auto_export_policy" {
      for_each = each.value == "write" && var.fsx.export_to_bucket ? [1] : []
      content {
        events = ["NEW", "CHANGED"] # never DELETED: an rm on the file system must not reach the bucket
      }
    }
  }
}

resource "aws_security_group" "fsx" {
  count = var.fsx == null ? 0 : 1

  name        = "${local.name}-fsx"
  description = "FSx for Lustre: its own servers and the nodes of the cluster, Lustre's ports only."
  vpc_id      = var.base.vpc_id

  tags = { Name = "${local.name}-fsx" }
}

locals {
  lustre_ports = { "988" = 988, "1018" = 1023 }
  lustre_peers = var.fsx == null ? {} : merge([
    for from, to in local.lustre_ports : {
      "nodes-${from}" = { from = tonumber(from), to = to, group = aws_eks_cluster.main.vpc_config[0].cluster_security_group_id, who = "nodes" }
      "self-${from}"  = { from = tonumber(from), to = to, group = aws_security_group.fsx[0].id, who = "its own servers" }
    }
  ]...)
}

resource "aws_vpc_security_group_ingress_rule" "fsx" {
  for_each = local.lustre_peers

  security_group_id            = aws_security_group.fsx[0].id
  description                  = "Lustre from ${each.value.who}"
  ip_protocol                  = "tcp"
  from_port                    = each.value.from
  to_port                      = each.value.to
  referenced_security_group_id = each.value.group
}

resource "aws_vpc_security_group_egress_rule" "fsx" {
  for_each = local.lustre_peers

  security_group_id            = aws_security_group.fsx[0].id
  description                  = "Lustre to ${each.value.who}"
  ip_protocol                  = "tcp"
  from_port                    = each.value.from
  to_port                      = each.value.to
  referenced_security_group_id = each.value.group
}
