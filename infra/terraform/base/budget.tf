# An alarm, not a brake: AWS counts with hours of delay. Skytrain's own meter stops a run at its budget.
resource "aws_budgets_budget" "monthly" {
  count = var.budget_usd_per_month > 0 ? 1 : 0

  name         = local.global_name
  budget_type  = "COST"
  limit_amount = format("%.1f", var.budget_usd_per_month)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  # A tag that is not active for cost allocation matches nothing, and the alarm would never ring: a switch, then.
  dynamic "cost_filter" {
    for_each = var.budget_of_project_only ? [1] : []
    content {
      name   = "TagKeyValue"
      values = [join("$", ["user:skytrain:project", var.project])]
    }
  }

  dynamic "notification" {
    for_each = [
      { type = "ACTUAL", percent = 50 },
      { type = "ACTUAL", percent = 80 },
      { type = "ACTUAL", percent = 100 },
      { type = "FORECASTED", percent = 100 },
    ]
    content {
      comparison_operator        = "GREATER_THAN"
      notification_type          = notification.value.type
      threshold                  = notification.value.percent
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = var.budget_emails
      subscriber_sns_topic_arns  = [aws_sns_topic.budget[0].arn]
    }
  }
}

resource "aws_sns_topic" "budget" {
  count = var.budget_usd_per_month > 0 ? 1 : 0

  name              = "${local.name}-budget"
  kms_master_key_id = aws_kms_key.main.arn
}

resource "aws_sns_topic_policy" "budget" {
  count = var.budget_usd_per_month > 0 ? 1 : 0

  arn = aws_sns_topic.budget[0].arn
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Budgets"
      Effect    = "Allow"
      Principal = { Service = "budgets.amazonaws.com" }
      Action    = "sns:Publish"
      Resource  = aws_sns_topic.budget[0].arn
      Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
    }]
  })
}
