# Logs and metrics into CloudWatch, by the agent of the machine image. Metrics are scraped on loopback, which only the
# machine's own programs reach.

resource "aws_cloudwatch_log_group" "this" {
  for_each          = var.collector ? toset(["log", "metrics"]) : toset([])
  name              = "/nightside/${var.region}/${each.value}"
  retention_in_days = var.log_days
  kms_key_id        = var.kms_key_arn
  tags              = local.tags
}

locals {
  collector_statements = [{
    Sid      = "CollectLogs"
    Effect   = "Allow"
    Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    Resource = [for group in aws_cloudwatch_log_group.this : "${group.arn}:*"]
  }]

  collector_files = {
    for name, _ in local.slots : name => {
      "/etc/nightside-machine/scrape.yaml" = yamlencode({
        global = { scrape_interval = "30s" }
        scrape_configs = [{
          job_name       = "nightside"
          static_configs = [{ targets = ["127.0.0.1:9900"], labels = { gateway = name, region = var.region } }]
        }]
      })
      "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/nightside.json" = jsonencode({
        logs = {
          logs_collected = {
            files = {
              collect_list = [{
                file_path       = "/var/log/nightside/gateway.log"
                log_group_name  = "/nightside/${var.region}/log"
                log_stream_name = name
              }]
            }
          }
          metrics_collected = {
            prometheus = {
              prometheus_config_path = "/etc/nightside-machine/scrape.yaml"
              log_group_name         = "/nightside/${var.region}/metrics"
              emf_processor = {
                metric_namespace = "Nightside"
                metric_declaration = [{
                  source_labels    = ["job"]
                  label_matcher    = "^nightside$"
                  dimensions       = [["region", "gateway"]]
                  metric_selectors = ["^nightside_"]
                }]
              }
            }
          }
        }
      })
    }
  }
}
