# Variables of tests: two gateways in a network of their own, one peer, two controllers.
aws_region   = "us-east-1"
region       = "us-east-1"
jurisdiction = "US"
network      = { cidr = "10.21.0.0/20" }
slots = {
  a = { zone = "us-east-1a", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:us-east-1a-AbCdEf"] }
  b = { zone = "us-east-1b", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:us-east-1b-AbCdEf"], health_host = "us-east-1b.gateways.example.net" }
}
shared_secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:us-east-1-AbCdEf"]
machine_image  = "ami-00000000000000000"
machine_type   = "m7g.medium"
package        = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
policy_file    = "tests/policy.yaml"
engines        = { cidrs = ["10.40.0.0/16"], ports = [8000, 30000] }
latitude       = 39.0
longitude      = -77.5
replicas = {
  us-east-1a = [{ id = "vllm-0", url = "http://10.40.0.10:8000", models = ["Qwen/Qwen3-8B"] }]
  us-east-1b = [{ id = "vllm-1", url = "http://10.40.0.11:8000", models = ["Qwen/Qwen3-8B"], dialect = "vllm" }]
}
peers = {
  europe-west1a = { region = "europe-west1", jurisdiction = "EU", address = "192.0.2.10:7070" }
}
controllers = ["198.51.100.10:7090", "198.51.100.11:7090"]
settings    = { placement = { overflow = "on" }, limits = { requests_max = 5000 } }
tags        = { owner = "platform" }
