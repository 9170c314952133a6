# Permissions of the machine: fetch its own files and secrets, attach its own disk, report its drain, and those that its
# role adds. Each statement is named after the part of the boot scripts that needs it.

locals {
  arn = "arn:${var.account.partition}"

  statements = concat(
    [
      {
        Sid    = "FetchObjects"
        Effect = "Allow"
        Action = ["s3:GetObject"]
        Resource = concat(
          ["${local.arn}:s3:::${var.config_bucket}/packages/*", "${local.arn}:s3:::${var.config_bucket}/${var.manifest}"],
          [for key in values(var.objects) : "${local.arn}:s3:::${var.config_bucket}/${key}"],
        )
      },
      {
        Sid      = "FetchSecrets"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = var.secrets
      },
      {
        Sid      = "AttachDisk"
        Effect   = "Allow"
        Action   = ["ec2:AttachVolume"]
        Resource = ["${local.arn}:ec2:${var.account.region}:${var.account.id}:volume/${local.disk}"]
      },
      {
        Sid       = "AttachDiskToOurselves"
        Effect    = "Allow"
        Action    = ["ec2:AttachVolume"]
        Resource  = ["${local.arn}:ec2:${var.account.region}:${var.account.id}:instance/*"]
        Condition = { StringEquals = { "ec2:ResourceTag/nightside:${var.role}" = var.name } }
      },
      {
        Sid      = "HasDrained"
        Effect   = "Allow"
        Action   = ["autoscaling:CompleteLifecycleAction"]
        Resource = ["${local.arn}:autoscaling:${var.account.region}:${var.account.id}:autoScalingGroup:*:autoScalingGroupName/${local.group}"]
      },
    ],
    length(var.decryption_keys) == 0 ? [] : [{
      Sid      = "Decrypt"
      Effect   = "Allow"
      Action   = ["kms:Decrypt"]
      Resource = var.decryption_keys
    }],
    var.statements,
  )
}

resource "aws_iam_role" "this" {
  name        = local.group
  description = "${var.role} ${var.name}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
  tags = local.tags
}

resource "aws_iam_instance_profile" "this" {
  name = local.group
  role = aws_iam_role.this.name
  tags = local.tags
}

resource "aws_iam_role_policy" "this" {
  name   = var.role
  role   = aws_iam_role.this.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}
