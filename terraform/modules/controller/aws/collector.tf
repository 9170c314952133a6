# Logs into CloudWatch, by the agent of the machine image.

resource "aws_cloudwatch_log_group" "this" {
  for_each          = var.collector ? toset(["log"]) : toset([])
  name              = "/nightside/${local.prefix}/${each.value}"
  retention_in_days = var.log_days
  kms_key_id        = var.kms_key_arn
  tags              = var.tags
}

locals {
  collector_statements = [{
    Sid      = "CollectLogs"
    Effect   = "Allow"
    Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    Resource = [for group in aws_cloudwatch_log_group.this : "${group.arn}:*"]
  }]

  collector_files = {
    for name, _ in var.slots : name => {
      "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/nightside.json" = jsonencode({
        logs = {
          logs_collected = {
            files = {
              collect_list = [{
                file_path       = "/var/log/nightside/controller.log"
                log_group_name  = "/nightside/${local.prefix}/log"
                log_stream_name = name
              }]
            }
          }
        }
      })
    }
  }
}
