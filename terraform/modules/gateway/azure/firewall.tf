# Permitted sources: clients, the balancer's probes and controllers to the clients' port, peers to theirs. Permitted
# targets: engines, peers, controllers, and Azure's own services over HTTPS.

resource "azurerm_network_security_group" "gateways" {
  name                = "${local.prefix}-gateways"
  location            = var.location
  resource_group_name = var.resource_group
  tags                = local.tags
}

locals {
  own_addresses = [for ip in values(local.addresses) : "${ip}/32"]
  rules = merge(
    {
      clients       = { priority = 100, direction = "Inbound", others = var.client_cidrs, ports = ["8443"] }
      probes        = { priority = 110, direction = "Inbound", others = ["AzureLoadBalancer"], ports = ["8443"] }
      siblings      = { priority = 130, direction = "Inbound", others = local.own_addresses, ports = ["7070"] }
      to-siblings   = { priority = 130, direction = "Outbound", others = local.own_addresses, ports = ["7070"] }
      to-engines    = { priority = 140, direction = "Outbound", others = var.engines.cidrs, ports = [for port in var.engines.ports : tostring(port)] }
      to-storage    = { priority = 150, direction = "Outbound", others = ["Storage"], ports = ["443"] }
      to-vaults     = { priority = 160, direction = "Outbound", others = ["AzureKeyVault"], ports = ["443"] }
      to-monitoring = { priority = 170, direction = "Outbound", others = ["AzureMonitor"], ports = ["443"] }
      to-management = { priority = 175, direction = "Outbound", others = ["AzureResourceManager"], ports = ["443"] } # the monitor's agent calls it
    },
    length(var.peers) == 0 ? {} : {
      peers    = { priority = 120, direction = "Inbound", others = [for ip in local.peer_ips : "${ip}/32"], ports = ["7070"] }
      to-peers = { priority = 120, direction = "Outbound", others = [for ip in local.peer_ips : "${ip}/32"], ports = distinct([for each in values(var.peers) : split(":", each.address)[1]]) }
    },
    length(var.controllers) == 0 ? {} : {
      controllers    = { priority = 180, direction = "Inbound", others = [for ip in local.controller_ips : "${ip}/32"], ports = ["8443"] }
      to-controllers = { priority = 180, direction = "Outbound", others = [for ip in local.controller_ips : "${ip}/32"], ports = distinct([for each in var.controllers : split(":", each)[1]]) }
    },
  )
}

resource "azurerm_network_security_rule" "allowed" {
  for_each                    = local.rules
  name                        = each.key
  resource_group_name         = var.resource_group
  network_security_group_name = azurerm_network_security_group.gateways.name
  priority                    = each.value.priority
  direction                   = each.value.direction
  access                      = "Allow"
  protocol                    = "Tcp"
  source_port_range           = "*"
  destination_port_ranges     = each.value.ports

  # Azure's name for a service is a single value, networks are a list
  source_address_prefix        = each.value.direction == "Outbound" ? "*" : can(cidrhost(each.value.others[0], 0)) ? null : each.value.others[0]
  source_address_prefixes      = each.value.direction == "Inbound" && can(cidrhost(each.value.others[0], 0)) ? each.value.others : null
  destination_address_prefix   = each.value.direction == "Inbound" ? "*" : can(cidrhost(each.value.others[0], 0)) ? null : each.value.others[0]
  destination_address_prefixes = each.value.direction == "Outbound" && can(cidrhost(each.value.others[0], 0)) ? each.value.others : null
}

resource "azurerm_network_security_rule" "nothing_else" {
  for_each                    = toset(["Inbound", "Outbound"])
  name                        = "nothing-else-${lower(each.value)}"
  resource_group_name         = var.resource_group
  network_security_group_name = azurerm_network_security_group.gateways.name
  priority                    = 4096
  direction                   = each.value
  access                      = "Deny"
  protocol                    = "*"
  source_port_range           = "*"
  source_address_prefix       = "*"
  destination_port_range      = "*"
  destination_address_prefix  = "*"
}
