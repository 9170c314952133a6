# Run by `make check-deploy` on a stand-in for the provider: it shows the requests to AWS, not their effect there.

provider "aws" {
  region = "us-east-1"
}

variables {
  region       = "us-east-1"
  jurisdiction = "US"
  vpc_id       = "vpc-1"
  slots = {
    a = { zone = "us-east-1a", subnet_id = "subnet-a", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:a"] }
    b = { zone = "us-east-1b", subnet_id = "subnet-b", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:b"], health_host = "b.gateways.example.net" }
  }
  machine_image = "ami-00000000000000000"
  machine_type  = "m7g.medium"
  package       = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
  policy_file   = "tests/policy.yaml"
  engines       = { cidrs = ["10.40.0.0/16"], ports = [8000, 30000] }
  latitude      = 39
  longitude     = -77.5
  controllers   = ["198.51.100.10:7090", "198.51.100.11:7090"]
  peers         = { europe-west1a = { region = "europe-west1", jurisdiction = "EU", address = "192.0.2.10:7070" } }
  replicas      = { us-east-1a = [{ id = "vllm-0", url = "http://10.40.0.10:8000", models = ["Qwen/Qwen3-8B"] }] }
  settings      = { limits = { requests_max = 5000 }, placement = { overflow = "shadow" } }
}

override_resource {
  target = aws_eip.slot
  values = { public_ip = "203.0.113.7" }
}

override_resource {
  target = aws_eip.clients
  values = { public_ip = "203.0.113.80" }
}

override_resource {
  target = module.config.aws_s3_bucket.this
  values = { bucket = "nightside-us-east-1-1", arn = "arn:aws:s3:::nightside-us-east-1-1" }
}

run "what_a_region_file_says" {
  command = apply

  assert {
    condition     = yamldecode(output.region_files["us-east-1a"]).gateway == "us-east-1a"
    error_message = "A gateway is named after its region and its slot."
  }
  assert {
    condition     = yamldecode(output.region_files["us-east-1a"]).control.client_addresses == ["203.0.113.80", "203.0.113.80"]
    error_message = "Clients get the balancer's addresses."
  }
  assert {
    condition     = yamldecode(output.region_files["us-east-1a"]).control.health_url == "https://203.0.113.7:8443/health" && yamldecode(output.region_files["us-east-1b"]).control.health_url == "https://b.gateways.example.net:8443/health"
    error_message = "Each gateway's health is probed at its own address or name."
  }
  assert {
    condition     = [for peer in yamldecode(output.region_files["us-east-1a"]).peers : peer.gateway] == ["us-east-1b", "europe-west1a"]
    error_message = "A gateway knows its siblings and all other regions', and not itself."
  }
  assert {
    condition     = length(yamldecode(output.region_files["us-east-1a"]).replicas) == 1 && length(yamldecode(output.region_files["us-east-1b"]).replicas) == 0
    error_message = "An engine belongs to one gateway."
  }
  assert {
    condition     = yamldecode(output.region_files["us-east-1a"]).limits == { drain = "10m", request_deadline = "10m", requests_max = 5000 }
    error_message = "Settings are merged into the module's own section."
  }
  assert {
    condition     = output.peers == { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" }, us-east-1b = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" } }
    error_message = "Other regions get the slots' own addresses."
  }
}

run "who_may_connect" {
  command = apply

  assert {
    condition     = [aws_vpc_security_group_ingress_rule.clients["0.0.0.0/0"].from_port, aws_vpc_security_group_ingress_rule.clients["0.0.0.0/0"].to_port] == [443, 443]
    error_message = "Clients come to the balancer, over HTTPS."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.from_balancer.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.from_balancer.from_port == 8443
    error_message = "Only the balancer and controllers reach the clients' port of a gateway."
  }
  assert {
    condition     = toset(keys(aws_vpc_security_group_ingress_rule.peers)) == toset(["192.0.2.10"]) && aws_vpc_security_group_ingress_rule.peers["192.0.2.10"].cidr_ipv4 == "192.0.2.10/32" && aws_vpc_security_group_ingress_rule.peers["192.0.2.10"].to_port == 7070
    error_message = "Each peer has a firewall rule of its own."
  }
  assert {
    condition     = toset(keys(aws_vpc_security_group_ingress_rule.controllers)) == toset(["198.51.100.10", "198.51.100.11"])
    error_message = "Controllers may probe health."
  }
  assert {
    condition     = toset(keys(aws_vpc_security_group_egress_rule.engines)) == toset(["10.40.0.0/16-8000", "10.40.0.0/16-30000"])
    error_message = "A gateway reaches engines at their ports."
  }
}

run "streams_are_left_alone" {
  command = apply

  assert {
    condition     = aws_lb_listener.clients.protocol == "TCP" && aws_lb_listener.clients.tcp_idle_timeout_seconds == 900
    error_message = "The balancer passes bytes on, and keeps idle connections."
  }
  assert {
    condition     = aws_lb_target_group.clients.deregistration_delay == "660" && one(aws_lb_target_group.clients.health_check).path == "/ready"
    error_message = "A gateway that drains keeps its streams."
  }
}

run "tls_by_acm" {
  command = apply
  variables {
    client_tls = { kind = "acm", certificate_arn = "arn:aws:acm:us-east-1:123456789012:certificate/1" }
  }

  assert {
    condition     = aws_lb_listener.clients.protocol == "TLS" && aws_lb_target_group.clients.protocol == "TLS"
    error_message = "TLS on both sides."
  }
}

run "generations_differ_by_one" {
  command = plan
  variables {
    slots = {
      a = { zone = "us-east-1a", subnet_id = "subnet-a", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:a"], generation = 3 }
      b = { zone = "us-east-1b", subnet_id = "subnet-b", secrets = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:b"] }
    }
  }
  expect_failures = [var.slots]
}

run "an_image_is_named" {
  command = plan
  variables {
    machine_image = "debian-12"
  }
  expect_failures = [var.machine_image]
}

run "acm_needs_a_certificate" {
  command = plan
  variables {
    client_tls = { kind = "acm" }
  }
  expect_failures = [var.client_tls]
}

run "a_digest_is_a_digest" {
  command = plan
  variables {
    package = { file = "tests/package.tar.gz", sha256 = "latest" }
  }
  expect_failures = [var.package]
}
