# EKS adds the image and the cluster's address to these; nodeadm merges all NodeConfig parts of the user data.

locals {
  node_config = {
    apiVersion = "node.eks.aws/v1alpha1"
    kind       = "NodeConfig"
  }

  # kubelet and containerd move onto the NVMe disks, so that a plain emptyDir is fast and no pod needs a hostPath.
  raid_config = yamlencode(merge(local.node_config, {
    spec = { instance = { localStorage = { strategy = "RAID0" } } }
  }))

  # Runs before nodeadm starts containerd and kubelet. EFA registers memory that must not be swapped: with the limit
  # raised on the node, pods need no IPC_LOCK, and training fits Pod Security `restricted`. The pages are those that
  # libfabric reserves for EFA; kubelet reports them as hugepages-2Mi.
  efa_script = <<-EOT
    #!/bin/bash
    set -euo pipefail
    mkdir -p /etc/systemd/system/containerd.service.d
    printf '[Service]\nLimitMEMLOCK=infinity\n' > /etc/systemd/system/containerd.service.d/50-memlock.conf
    systemctl daemon-reload
    echo 'vm.nr_hugepages = 5128' > /etc/sysctl.d/90-efa-hugepages.conf
    sysctl -p /etc/sysctl.d/90-efa-hugepages.conf
  EOT

  user_data = {
    for market, group in local.gpu_groups : market => join("\n", concat(
      ["MIME-Version: 1.0", "Content-Type: multipart/mixed; boundary=\"==SKYTRAIN==\"", ""],
      group.efa > 0 ? ["--==SKYTRAIN==", "Content-Type: text/x-shellscript; charset=\"us-ascii\"", "", local.efa_script] : [],
      group.nvme ? ["--==SKYTRAIN==", "Content-Type: application/node.eks.aws", "", local.raid_config] : [],
      ["--==SKYTRAIN==--", ""],
    ))
  }
}

resource "aws_launch_template" "system" {
  name                   = "${local.name}-eks-system"
  description            = "CPU nodes of ${local.name}"
  vpc_security_group_ids = local.node_security_groups
  update_default_version = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # pods get their permissions by pod identity, never the node's role
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = 50
      encrypted             = true
      kms_key_id            = var.base.kms_key_arn
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${local.name}-system" })
    }
  }
}

resource "aws_launch_template" "gpu" {
  for_each = local.gpu_groups

  name                   = "${local.name}-eks-${each.key}"
  description            = "GPU nodes of ${local.name}, ${each.key}: ${each.value.instance_type}"
  user_data              = base64encode(local.user_data[each.key])
  update_default_version = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = var.node_volume_gb
      encrypted             = true
      kms_key_id            = var.base.kms_key_arn
      delete_on_termination = true
    }
  }

  dynamic "network_interfaces" {
    for_each = local.efa_devices[each.key]
    content {
      network_card_index          = network_interfaces.value.card
      device_index                = network_interfaces.value.device
      interface_type              = network_interfaces.value.type
      security_groups             = local.node_security_groups
      associate_public_ip_address = network_interfaces.value.type == "interface" ? false : null
      delete_on_termination       = true
    }
  }

  dynamic "placement" {
    for_each = each.value.efa > 0 ? [1] : []
    content {
      group_name = aws_placement_group.gpu[each.key].name
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${local.name}-gpu-${each.key}" })
    }
  }
}
