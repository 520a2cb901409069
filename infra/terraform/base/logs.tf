locals {
  log_groups = merge(
    { nodes = local.log_group },
    var.flow_logs ? { flow = "/skytrain/${var.project}/flow" } : {},
  )
}

resource "aws_cloudwatch_log_group" "main" {
  #checkov:skip=CKV_AWS_338:A year of log lines costs more than it tells; runs keep their own logs in the store
  for_each = local.log_groups

  name              = each.value
  retention_in_days = var.log_retention_days
  kms_key_id        = aws_kms_key.main.arn
}
