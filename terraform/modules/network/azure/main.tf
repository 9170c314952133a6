# The minimal network for gateways: a network with one subnet. Teams with a network of their own leave this module out.

resource "azurerm_virtual_network" "this" {
  name                = var.name
  location            = var.location
  resource_group_name = var.resource_group
  address_space       = [var.cidr]
  tags                = var.tags
}

resource "azurerm_subnet" "this" {
  name                            = var.name
  resource_group_name             = var.resource_group
  virtual_network_name            = azurerm_virtual_network.this.name
  address_prefixes                = [var.cidr]
  default_outbound_access_enabled = false # gateways have addresses of their own

  service_endpoint {
    service = "Microsoft.Storage"
  }

  service_endpoint {
    service = "Microsoft.KeyVault"
  }
}
