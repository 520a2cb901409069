# A role for each launch. Instance profiles carry no session tags, so that machines of two runs are told apart by their
# roles only. `skytrain launch` creates one below `run_path`, with the boundary, the policies of its pattern (roles.tf)
# and tags: the run, those that it is joined with, and its sweep. The policies name these tags and no run, so that nobody
# writes policies but Terraform. `stop` and `gc` delete the role.

# The boundary: no role that an operator creates can do more, whatever is attached to it.
resource "aws_iam_policy" "machines" {
  #checkov:skip=CKV_AWS_355:A boundary grants nothing; what is granted stands in the policies of the patterns
  #checkov:skip=CKV_AWS_290:A boundary grants nothing; what is granted stands in the policies of the patterns
  #checkov:skip=CKV_AWS_288:A boundary grants nothing; what is granted stands in the policies of the patterns
  name        = "${local.global_name}-machines"
  description = "The most that a role of machines of Skytrain project ${var.project} can be allowed."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.read_the_project,
      [
        {
          Sid    = "WriteRunsAndData"
          Effect = "Allow"
          Action = local.write_objects
          Resource = [
            for folder in distinct(concat(["runs", "sweeps", "corpora", "tokens", "tokenizers"], var.node_writes)) :
            "${local.project_arn}/${folder}/*"
          ]
        },
        local.own_log_group,
        local.see_machines,
        merge(local.end_and_scale, { Sid = "EndAndScaleTheProject", Condition = local.if_of_a_run }),
        local.session_manager_agent,
        local.log_in_to_registry,
        local.pull_images,
        {
          Sid      = "KeysOfEndpoints"
          Effect   = "Allow"
          Action   = "ssm:GetParameter"
          Resource = concat([local.endpoint_keys_arn], local.parameter_arns)
        },
        {
          Sid       = "KeyOfKeysAndSecrets"
          Effect    = "Allow"
          Action    = "kms:Decrypt"
          Resource  = aws_kms_key.main.arn
          Condition = local.if_key_used_for_secrets
        },
      ],
      length(local.secret_arns) == 0 ? [] : [
        {
          Sid      = "Secrets"
          Effect   = "Allow"
          Action   = "secretsmanager:GetSecretValue"
          Resource = local.secret_arns
        },
      ],
      [for each in local.around_training_jobs : each if var.sagemaker],
      [for each in [local.key_of_emr_disks] : each if var.emr],
      # Whom a role trusts is written by whoever creates it. So its credentials are good for nothing unless EC2 gave them
      # to a machine in this network. SageMaker and EMR Serverless run machines elsewhere.
      var.sagemaker || var.emr ? [] : [
        {
          Sid      = "OnMachinesOfTheBaseOnly"
          Effect   = "Deny"
          Action   = "*"
          Resource = "*"
          Condition = {
            StringNotEquals = { "aws:Ec2InstanceSourceVpc" = aws_vpc.main.id }
            BoolIfExists    = { "aws:ViaAWSService" = "false" }
          }
        },
      ],
    )
  })
}

locals {
  # What a launch attaches, by the kind of its machines; `vault` only where it names secrets.
  machine_policies = {
    node      = [aws_iam_policy.node_store.arn, aws_iam_policy.node_machine.arn]
    prepare   = concat([aws_iam_policy.node_store.arn, aws_iam_policy.node_machine.arn, aws_iam_policy.prepare_data.arn], aws_iam_policy.prepare_emr_disks[*].arn)
    serve     = [aws_iam_policy.serve_store.arn, aws_iam_policy.serve_machine.arn]
    sagemaker = aws_iam_policy.node_sagemaker[*].arn
    vault     = aws_iam_policy.node_secrets[*].arn
  }

  # The services that run machines with such a role.
  machine_services = concat(
    local.ec2_services,
    var.sagemaker ? ["sagemaker.amazonaws.com"] : [],
    var.emr ? ["emr-serverless.amazonaws.com"] : [],
  )
}

resource "aws_iam_policy" "operator_roles" {
  name        = "${local.global_name}-operator-roles"
  description = "Roles and instance profiles of launches, with our tags, below the boundary, and for nothing else."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "CreateBelowTheBoundary"
        Effect   = "Allow"
        Action   = "iam:CreateRole"
        Resource = local.run_roles_arn
        Condition = merge(local.if_created_with_our_tags, {
          StringEquals = merge(local.if_created_with_our_tags.StringEquals, { "iam:PermissionsBoundary" = aws_iam_policy.machines.arn })
        })
      },
      { # IAM cannot say that tags come with creation: at least a role that has an owner keeps it.
        Sid      = "TagsAtCreation"
        Effect   = "Allow"
        Action   = "iam:TagRole"
        Resource = local.run_roles_arn
        Condition = merge(local.if_created_with_our_tags, {
          Null = merge(local.if_created_with_our_tags.Null, { "aws:ResourceTag/skytrain:project" = "true" })
        })
      },
      {
        Sid      = "AttachThePatternsPolicies"
        Effect   = "Allow"
        Action   = "iam:AttachRolePolicy"
        Resource = local.run_roles_arn
        Condition = {
          ArnEquals    = { "iam:PolicyARN" = distinct(flatten(values(local.machine_policies))) }
          StringEquals = { "iam:PermissionsBoundary" = aws_iam_policy.machines.arn }
        }
      },
      { # Without tags: `gc` deletes a profile with the role of its name.
        Sid    = "Profiles"
        Effect = "Allow"
        Action = [
          "iam:AddRoleToInstanceProfile", "iam:CreateInstanceProfile", "iam:DeleteInstanceProfile",
          "iam:RemoveRoleFromInstanceProfile",
        ]
        Resource = local.run_profiles_arn
      },
      {
        Sid       = "Delete"
        Effect    = "Allow"
        Action    = ["iam:DeleteRole", "iam:DetachRolePolicy"]
        Resource  = local.run_roles_arn
        Condition = local.if_of_a_run
      },
      {
        Sid       = "PassToMachines"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = local.run_roles_arn
        Condition = { StringEquals = { "iam:PassedToService" = local.machine_services } }
      },
    ]
  })
}
