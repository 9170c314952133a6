# Run by `make check-deploy` on a stand-in for the provider: it shows the requests to Azure, not their effect there.

provider "azurerm" {
  subscription_id = "00000000-0000-0000-0000-000000000000"
  features {}
}

variables {
  region         = "japaneast"
  location       = "japaneast"
  jurisdiction   = "JP"
  resource_group = "nightside"
  subnet_id      = "subnet"
  slots = {
    a = { zone = "1", secrets = ["https://mesh.vault.azure.net/secrets/a"] }
    b = { zone = "2", secrets = ["https://mesh.vault.azure.net/secrets/b"], private_ip = "10.23.0.10" }
  }
  vault_id       = "/subscriptions/0/resourceGroups/secrets/providers/Microsoft.KeyVault/vaults/mesh"
  machine_image  = "/subscriptions/0/resourceGroups/images/providers/Microsoft.Compute/galleries/mesh/images/nightside/versions/1.0.0"
  machine_type   = "Standard_D2s_v5"
  ssh_public_key = "ssh-ed25519 AAAA unused"
  package        = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
  policy_file    = "tests/policy.yaml"
  engines        = { cidrs = ["10.40.0.0/16"] }
  latitude       = 35
  longitude      = 139
  controllers    = ["198.51.100.10:7090"]
  peers          = { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "192.0.2.10:7070" } }
}

run "what_stays_and_what_goes" {
  command = apply

  assert {
    condition     = one(azurerm_linux_virtual_machine.slot["japaneasta"].termination_notification).timeout == "PT15M"
    error_message = "Azure waits longer than a unit takes to stop."
  }
  assert {
    condition     = azurerm_public_ip.slot["japaneasta"].allocation_method == "Static" && azurerm_network_interface.slot["japaneastb"].ip_configuration[0].private_ip_address_allocation == "Static"
    error_message = "Addresses outlive the machine."
  }
  assert {
    condition     = toset([for each in azurerm_role_assignment.secrets : each.scope]) == toset(["${var.vault_id}/secrets/a", "${var.vault_id}/secrets/b"])
    error_message = "A slot may read its own secrets and no others."
  }
}

run "who_may_connect" {
  command = apply

  assert {
    condition     = azurerm_network_security_rule.allowed["peers"].source_address_prefixes == toset(["192.0.2.10/32"]) && azurerm_network_security_rule.allowed["peers"].destination_port_ranges == toset(["7070"])
    error_message = "Each peer has a firewall rule of its own."
  }
  assert {
    condition     = azurerm_network_security_rule.allowed["probes"].source_address_prefix == "AzureLoadBalancer" && azurerm_network_security_rule.allowed["clients"].destination_port_ranges == toset(["8443"])
    error_message = "The balancer probes, and clients connect, at one port."
  }
  assert {
    condition     = azurerm_network_security_rule.nothing_else["Outbound"].access == "Deny"
    error_message = "A gateway reaches only the named targets."
  }
}

run "streams_are_left_alone" {
  command = apply

  assert {
    condition     = azurerm_lb_rule.clients.idle_timeout_in_minutes == 15 && azurerm_lb_rule.clients.tcp_reset_enabled && azurerm_lb_probe.ready.request_path == "/ready"
    error_message = "An idle connection is kept for a time, and its end is reported with a reset."
  }
}

run "an_idle_timeout_that_azure_takes" {
  command = plan
  variables {
    client_idle_timeout_min = 120
  }
  expect_failures = [var.client_idle_timeout_min]
}

run "generations_differ_by_one" {
  command = plan
  variables {
    slots = {
      a = { zone = "1", secrets = ["https://mesh.vault.azure.net/secrets/a"], generation = 5 }
      b = { zone = "2", secrets = ["https://mesh.vault.azure.net/secrets/b"] }
    }
  }
  expect_failures = [var.slots]
}
