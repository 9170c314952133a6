# Configuration and packages: objects that machines read as they boot and every few minutes.

resource "azurerm_storage_account" "config" {
  name                            = "ns${substr(sha256("${var.resource_group} ${var.region}"), 0, 18)}"
  location                        = var.location
  resource_group_name             = var.resource_group
  account_tier                    = "Standard"
  account_replication_type        = "ZRS"
  min_tls_version                 = "TLS1_2"
  allow_nested_items_to_be_public = false
  shared_access_key_enabled       = false # roles alone
  default_to_oauth_authentication = true
  tags                            = local.tags

  blob_properties {
    versioning_enabled = true
    delete_retention_policy {
      days = 30
    }
    container_delete_retention_policy {
      days = 30
    }
  }
}

resource "azurerm_storage_container" "config" {
  name                  = "config"
  storage_account_id    = azurerm_storage_account.config.id
  container_access_type = "private"
}

resource "azurerm_storage_blob" "package" {
  name                 = "packages/${var.package.sha256}.tar.gz"
  storage_container_id = azurerm_storage_container.config.id
  type                 = "Block"
  source               = var.package.file

  lifecycle {
    precondition {
      condition     = filesha256(var.package.file) == var.package.sha256
      error_message = "The SHA-256 of ${var.package.file} is not the pinned one."
    }
  }
}

resource "azurerm_storage_blob" "manifest" {
  name                 = "package"
  storage_container_id = azurerm_storage_container.config.id
  type                 = "Block"
  source_content       = "${var.package.sha256} packages/${var.package.sha256}.tar.gz\n"
}

resource "azurerm_storage_blob" "policy" {
  name                 = "policy.yaml"
  storage_container_id = azurerm_storage_container.config.id
  type                 = "Block"
  source_content       = file(var.policy_file)
}

resource "azurerm_storage_blob" "table" {
  name                 = "regions.yaml"
  storage_container_id = azurerm_storage_container.config.id
  type                 = "Block"
  source_content       = local.table
}

locals {
  beside = "${dirname(var.policy_file)}/regions.yaml"
  table  = fileexists(local.beside) ? file(local.beside) : "version: 1\nregions: {}\n"
}

resource "azurerm_storage_blob" "region_file" {
  for_each             = local.slots
  name                 = "gateways/${each.key}/region.yaml"
  storage_container_id = azurerm_storage_container.config.id
  type                 = "Block"
  source_content       = module.region_file.files[each.key]
}
