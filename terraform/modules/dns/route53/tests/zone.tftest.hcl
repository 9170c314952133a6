provider "aws" {
  region = "us-east-1"
}

variables {
  name = "llm.example.net"
}

run "a_zone_of_its_own" {
  command = apply

  assert {
    condition     = aws_route53_zone.this[0].name == "llm.example.net" && length(aws_route53_record.delegation) == 0
    error_message = "Without a parent zone, it is delegated by hand."
  }
}

run "delegated_from_above" {
  command = apply
  variables {
    parent_zone_id = "Z0PARENT"
  }

  assert {
    condition     = aws_route53_record.delegation[0].type == "NS" && aws_route53_record.delegation[0].zone_id == "Z0PARENT"
    error_message = "The parent zone names its servers."
  }
}

run "a_zone_that_is_there" {
  command = plan
  variables {
    existing_zone_id = "Z0EXISTING"
  }
  override_data {
    target = data.aws_route53_zone.this
    values = { name = "example.net" }
  }

  assert {
    condition     = length(aws_route53_zone.this) == 0 && output.zone_id == "Z0EXISTING"
    error_message = "No zone is made beside an existing one."
  }
}

run "a_zone_of_somebody_else" {
  command = plan
  variables {
    existing_zone_id = "Z0EXISTING"
  }
  override_data {
    target = data.aws_route53_zone.this
    values = { name = "ample.net" }
  }
  expect_failures = [data.aws_route53_zone.this]
}
