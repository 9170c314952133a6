provider "aws" {
  region = "eu-west-1"
}

variables {
  vpc_id = "vpc-1"
  slots = {
    controller-1 = { zone = "eu-west-1a", subnet_id = "subnet-a", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:c1"] }
    controller-2 = { zone = "eu-west-1b", subnet_id = "subnet-b", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:c2"] }
  }
  machine_image        = "ami-00000000000000000"
  machine_type         = "t4g.small"
  package              = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
  table                = { name = "nightside", arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/nightside" }
  zone                 = { id = "Z0123456789ABC", name = "llm.example.net" }
  regions_file         = "tests/regions.yaml"
  aws_regions          = { europe-west1 = "eu-central-1" }
  closed_jurisdictions = { EU = ["IE", "DE"] }
  gateways             = { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" } }
}

run "what_a_controller_is_told" {
  command = apply

  assert {
    condition     = yamldecode(output.files["controller-1"]).records.route53.locations == { EU = ["IE", "DE"] } && yamldecode(output.files["controller-1"]).decisions.closed_jurisdictions == ["EU"]
    error_message = "A closed jurisdiction lists its places."
  }
  assert {
    condition     = yamldecode(output.files["controller-1"]).recovery.aws == { action = "replace", regions = { europe-west1 = "eu-central-1" } }
    error_message = "A region with a name of its own has its gateways recovered in its AWS region."
  }
  assert {
    condition     = yamldecode(output.files["controller-2"]).controller == "controller-2" && yamldecode(output.files["controller-2"]).store == yamldecode(output.files["controller-1"]).store
    error_message = "Each controller has its own name, and all share one store."
  }
  assert {
    condition     = keys(aws_vpc_security_group_ingress_rule.gateways) == ["203.0.113.7"] && aws_vpc_security_group_ingress_rule.gateways["203.0.113.7"].from_port == 7090
    error_message = "Only gateways may attach."
  }
}

run "two_zones" {
  command = plan
  variables {
    slots = {
      controller-1 = { zone = "eu-west-1a", subnet_id = "subnet-a", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:c1"] }
      controller-2 = { zone = "eu-west-1a", subnet_id = "subnet-a", secrets = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:c2"] }
    }
  }
  expect_failures = [var.slots]
}
