# Logs into Log Analytics, by Azure Monitor's agent, from syslog. It scrapes no metrics on a machine: see the README.

locals {
  collector_files = {
    # into the journal, and from there into syslog
    "/etc/systemd/system/nightside-gateway.service.d/zz-syslog.conf" = "[Service]\nStandardOutput=journal\nSyslogIdentifier=nightside\n"
  }
}

resource "azurerm_virtual_machine_extension" "monitor" {
  for_each                   = var.log_workspace_id == null ? {} : local.slots
  name                       = "AzureMonitorLinuxAgent"
  virtual_machine_id         = azurerm_linux_virtual_machine.slot[each.key].id
  publisher                  = "Microsoft.Azure.Monitor"
  type                       = "AzureMonitorLinuxAgent"
  type_handler_version       = "1.0"
  auto_upgrade_minor_version = true
  automatic_upgrade_enabled  = true
  tags                       = local.tags

  settings = jsonencode({
    authentication = {
      managedIdentity = { "identifier-name" = "mi_res_id", "identifier-value" = azurerm_user_assigned_identity.slot[each.key].id }
    }
  })
}

resource "azurerm_monitor_data_collection_rule" "log" {
  count               = var.log_workspace_id == null ? 0 : 1
  name                = "${local.prefix}-log"
  location            = var.location
  resource_group_name = var.resource_group
  kind                = "Linux"
  tags                = local.tags

  destinations {
    log_analytics {
      name                  = "workspace"
      workspace_resource_id = var.log_workspace_id
    }
  }

  data_flow {
    streams      = ["Microsoft-Syslog"]
    destinations = ["workspace"]
  }

  data_sources {
    syslog {
      name           = "log"
      streams        = ["Microsoft-Syslog"]
      facility_names = ["daemon"]
      log_levels     = ["*"]
    }
  }
}

resource "azurerm_monitor_data_collection_rule_association" "log" {
  for_each                = var.log_workspace_id == null ? {} : local.slots
  name                    = "nightside-${each.key}"
  target_resource_id      = azurerm_linux_virtual_machine.slot[each.key].id
  data_collection_rule_id = azurerm_monitor_data_collection_rule.log[0].id
}
