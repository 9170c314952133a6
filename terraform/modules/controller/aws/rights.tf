# Permissions of a controller besides those of any slot: its one table, its one name, and machines with the tag.
# `make check-deploy` compares these with the calls that the code makes, both ways.

locals {
  arn = "arn:${local.account.partition}"

  statements = concat(
    [
      {
        Sid    = "Store"
        Effect = "Allow"
        Action = [
          "dynamodb:BatchGetItem",
          "dynamodb:BatchWriteItem",
          "dynamodb:GetItem",
          "dynamodb:PutItem",
          "dynamodb:Scan",
          "dynamodb:UpdateItem",
        ]
        Resource = [var.table.arn]
      },
      {
        Sid      = "ReadRecords"
        Effect   = "Allow"
        Action   = ["route53:ListResourceRecordSets"]
        Resource = ["${local.arn}:route53:::hostedzone/${var.zone.id}"]
      },
      {
        Sid       = "WriteRecords"
        Effect    = "Allow"
        Action    = ["route53:ChangeResourceRecordSets"]
        Resource  = ["${local.arn}:route53:::hostedzone/${var.zone.id}"]
        Condition = { "ForAllValues:StringLike" = { "route53:ChangeResourceRecordSetsNormalizedRecordNames" = [var.zone.name, "*.${var.zone.name}"] } }
      },
      {
        Sid      = "FollowChanges"
        Effect   = "Allow"
        Action   = ["route53:GetChange"]
        Resource = ["${local.arn}:route53:::change/*"]
      },
    ],
    var.health_checks == "none" ? [] : [
      {
        Sid      = "HealthChecks"
        Effect   = "Allow"
        Action   = ["route53:CreateHealthCheck", "route53:ListHealthChecks"]
        Resource = ["*"]
      },
      {
        Sid      = "RemoveHealthChecks"
        Effect   = "Allow"
        Action   = ["route53:DeleteHealthCheck"]
        Resource = ["${local.arn}:route53:::healthcheck/*"]
      },
    ],
    var.recovery == "none" ? [] : [{
      Sid      = "FindTheInstance"
      Effect   = "Allow"
      Action   = ["ec2:DescribeInstances"]
      Resource = ["*"]
    }],
    var.recovery != "reboot" ? [] : [{
      Sid       = "StartAnew"
      Effect    = "Allow"
      Action    = ["ec2:RebootInstances"]
      Resource  = ["${local.arn}:ec2:*:${local.account.id}:instance/*"]
      Condition = { StringLike = { "aws:ResourceTag/nightside:gateway" = "*" } }
    }],
    var.recovery != "replace" ? [] : [{
      Sid       = "Replace"
      Effect    = "Allow"
      Action    = ["autoscaling:SetInstanceHealth"]
      Resource  = ["${local.arn}:autoscaling:*:${local.account.id}:autoScalingGroup:*:autoScalingGroupName/*"]
      Condition = { StringLike = { "aws:ResourceTag/nightside:gateway" = "*" } }
    }],
  )
}
