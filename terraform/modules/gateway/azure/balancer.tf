# For clients alone: peers and controllers reach each slot by its own address. It passes packets on as they come.

resource "azurerm_public_ip" "clients" {
  name                = "${local.prefix}-clients"
  location            = var.location
  resource_group_name = var.resource_group
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = distinct([for slot in values(local.slots) : slot.zone])
  tags                = local.tags
}

resource "azurerm_lb" "clients" {
  name                = "${local.prefix}-clients"
  location            = var.location
  resource_group_name = var.resource_group
  sku                 = "Standard"
  tags                = local.tags

  frontend_ip_configuration {
    name                 = "clients"
    public_ip_address_id = azurerm_public_ip.clients.id
  }
}

resource "azurerm_lb_backend_address_pool" "gateways" {
  name            = "gateways"
  loadbalancer_id = azurerm_lb.clients.id
}

resource "azurerm_network_interface_backend_address_pool_association" "slot" {
  for_each                = local.slots
  network_interface_id    = azurerm_network_interface.slot[each.key].id
  ip_configuration_name   = "own"
  backend_address_pool_id = azurerm_lb_backend_address_pool.gateways.id
}

# A gateway's existing connections continue while it is not ready: a drain cuts none.
resource "azurerm_lb_probe" "ready" {
  name                = "ready"
  loadbalancer_id     = azurerm_lb.clients.id
  protocol            = "Https"
  port                = 8443
  request_path        = "/ready"
  interval_in_seconds = 5
  probe_threshold     = 2
}

resource "azurerm_lb_rule" "clients" {
  name                           = "clients"
  loadbalancer_id                = azurerm_lb.clients.id
  frontend_ip_configuration_name = "clients"
  protocol                       = "Tcp"
  frontend_port                  = 443
  backend_port                   = 8443
  backend_address_pool_ids       = [azurerm_lb_backend_address_pool.gateways.id]
  probe_id                       = azurerm_lb_probe.ready.id
  idle_timeout_in_minutes        = var.client_idle_timeout_min
  tcp_reset_enabled              = true # the peer of an idle connection that is cut gets a reset
  disable_outbound_snat          = true
}
