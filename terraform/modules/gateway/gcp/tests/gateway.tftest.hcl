# Run by `make check-deploy` on a stand-in for the provider: it shows the requests to Google, not their effect there.

provider "google" {
  project = "example-project"
}

variables {
  project      = "example-project"
  region       = "europe-west1"
  gcp_region   = "europe-west1"
  jurisdiction = "EU"
  network      = "network"
  subnet       = "subnet"
  slots = {
    a = { zone = "europe-west1-b", secrets = ["projects/example-project/secrets/a"] }
    b = { zone = "europe-west1-c", secrets = ["projects/example-project/secrets/b"] }
  }
  shared_secrets = ["projects/example-project/secrets/keys"]
  machine_image  = "projects/example-project/global/images/nightside-1"
  machine_type   = "e2-standard-2"
  package        = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
  policy_file    = "tests/policy.yaml"
  engines        = { cidrs = ["10.40.0.0/16"] }
  latitude       = 50
  longitude      = 4
  controllers    = ["198.51.100.10:7090"]
  peers          = { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "192.0.2.10:7070" } }
}

run "one_machine_that_is_replaced_after_it_has_ended" {
  command = apply

  assert {
    condition     = one(google_compute_instance_group_manager.slot["europe-west1a"].update_policy).max_surge_fixed == 0 && one(google_compute_instance_group_manager.slot["europe-west1a"].update_policy).replacement_method == "RECREATE"
    error_message = "The next machine waits for the addresses and the disk of the previous one."
  }
  assert {
    condition     = one(one(google_compute_per_instance_config.slot["europe-west1a"].preserved_state).disk).delete_rule == "NEVER"
    error_message = "The disk outlives the machine."
  }
  assert {
    condition     = one(google_compute_health_check.alive.https_health_check).request_path == "/health"
    error_message = "A gateway that drains is left alone."
  }
}

run "who_may_connect" {
  command = apply

  assert {
    condition     = one(google_compute_firewall.peers.allow).ports == tolist(["7070"]) && contains(google_compute_firewall.peers.source_ranges, "192.0.2.10/32") && !contains(google_compute_firewall.peers.source_ranges, "0.0.0.0/0")
    error_message = "Each peer has a firewall rule of its own."
  }
  assert {
    condition     = toset(keys(google_compute_firewall.out)) == toset(["services", "engines", "siblings", "peers", "controllers"]) && one(google_compute_firewall.nothing_else_out.deny).protocol == "all"
    error_message = "A gateway reaches only the named targets."
  }
  assert {
    condition     = toset([for each in google_secret_manager_secret_iam_member.slot : each.secret_id]) == toset(["projects/example-project/secrets/a", "projects/example-project/secrets/b", "projects/example-project/secrets/keys"]) && length(google_secret_manager_secret_iam_member.slot) == 4
    error_message = "A slot may read its own secrets and the shared ones."
  }
}

run "streams_are_left_alone" {
  command = apply

  assert {
    condition     = google_compute_region_backend_service.clients[0].connection_draining_timeout_sec == 660 && one(google_compute_region_backend_service.clients[0].connection_tracking_policy).connection_persistence_on_unhealthy_backends == "ALWAYS_PERSIST"
    error_message = "A gateway that drains keeps its streams."
  }
  assert {
    condition     = yamldecode(output.region_files["europe-west1a"]).listen.http == "0.0.0.0:443" && google_compute_forwarding_rule.clients[0].ports == toset(["443"])
    error_message = "The balancer does not map ports."
  }
}

run "a_certificate_of_googles" {
  command = apply
  variables {
    client_tls = { kind = "managed", domains = ["llm.example.net"] }
  }

  assert {
    condition     = google_compute_backend_service.clients[0].timeout_sec == 900 && google_compute_backend_service.clients[0].protocol == "SSL" && length(google_compute_region_backend_service.clients) == 0
    error_message = "Google's proxy keeps idle connections, and connects to gateways by TLS."
  }
  assert {
    condition     = !contains(google_compute_firewall.clients.source_ranges, "0.0.0.0/0")
    error_message = "Behind a proxy only the proxy connects."
  }
}

run "an_image_by_its_own_name" {
  command = plan
  variables {
    machine_image = "projects/debian-cloud/global/images/family/debian-12"
  }
  expect_failures = [var.machine_image]
}

run "generations_differ_by_one" {
  command = plan
  variables {
    slots = {
      a = { zone = "europe-west1-b", secrets = ["projects/example-project/secrets/a"], generation = 5 }
      b = { zone = "europe-west1-c", secrets = ["projects/example-project/secrets/b"] }
    }
  }
  expect_failures = [var.slots]
}
