aws_region = "eu-west-1"
domain     = "llm.example.net"
network    = { cidr = "10.20.0.0/20" }
controllers = {
  controller-1 = { zone = "eu-west-1a", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:controller-1-AbCdEf"] }
  controller-2 = { zone = "eu-west-1b", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:controller-2-AbCdEf"] }
}
regions_file         = "tests/regions.yaml"
machine_image        = "ami-00000000000000000"
machine_type         = "t4g.small"
package              = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
closed_jurisdictions = { EU = ["AT", "DE", "IE"] }
aws_regions          = { europe-west1 = "eu-central-1", japaneast = "ap-northeast-1" }
gateways = {
  us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" }
}
