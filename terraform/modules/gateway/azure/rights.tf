# Permissions of a slot's machine: read the region's objects, and its own secrets.

resource "azurerm_user_assigned_identity" "slot" {
  for_each            = local.slots
  name                = "nightside-${each.key}"
  location            = var.location
  resource_group_name = var.resource_group
  tags                = local.tags
}

resource "azurerm_role_assignment" "objects" {
  for_each             = local.slots
  scope                = azurerm_storage_container.config.id
  role_definition_name = "Storage Blob Data Reader"
  principal_id         = azurerm_user_assigned_identity.slot[each.key].principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_role_assignment" "secrets" {
  for_each             = local.secrets
  scope                = "${var.vault_id}/secrets/${each.value.secret}"
  role_definition_name = "Key Vault Secrets User"
  principal_id         = azurerm_user_assigned_identity.slot[each.value.slot].principal_id
  principal_type       = "ServicePrincipal"
}
