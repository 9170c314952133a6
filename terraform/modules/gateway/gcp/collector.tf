# Logs and metrics into Cloud Logging and Cloud Monitoring, by the Ops Agent of the machine image. Metrics are scraped on
# loopback, which only the machine's own programs reach.

locals {
  collector_file = yamlencode({
    logging = {
      receivers  = { nightside = { type = "files", include_paths = ["/var/log/nightside/gateway.log"] } }
      processors = { nightside = { type = "parse_json", time_key = "timestamp", time_format = "%Y-%m-%dT%H:%M:%S.%L%z" } }
      service    = { pipelines = { nightside = { receivers = ["nightside"], processors = ["nightside"] } } }
    }
    metrics = {
      receivers = {
        nightside = {
          type = "prometheus"
          config = {
            scrape_configs = [{
              job_name        = "nightside"
              scrape_interval = "30s"
              static_configs  = [{ targets = ["127.0.0.1:9900"] }]
            }]
          }
        }
      }
      service = { pipelines = { nightside = { receivers = ["nightside"] } } }
    }
  })
}
