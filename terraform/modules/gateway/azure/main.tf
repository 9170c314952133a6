# A region's gateways in Azure: one slot for each, with a name, an address, a disk and secrets of its own, and a machine
# that comes and goes.

locals {
  slots  = { for name, slot in var.slots : "${var.region}${name}" => slot }
  prefix = "nightside-${var.region}"
  tags   = merge(var.tags, { "nightside-region" = var.region })

  addresses      = { for name, _ in local.slots : name => azurerm_public_ip.slot[name].ip_address }
  controller_ips = distinct([for each in var.controllers : split(":", each)[0]])
  peer_ips       = distinct([for each in values(var.peers) : split(":", each.address)[0]])
  secrets = merge([
    for name, slot in local.slots : { for url in concat(slot.secrets, var.shared_secrets) : "${name} ${url}" => { slot = name, secret = reverse(split("/", url))[0] } }
  ]...)
}

module "region_file" {
  source = "../../region_file"

  region       = var.region
  jurisdiction = var.jurisdiction
  gateways = {
    for name, slot in local.slots : name => {
      peer_address   = "${local.addresses[name]}:7070"
      health_host    = coalesce(slot.health_host, local.addresses[name])
      client_address = [azurerm_public_ip.clients.ip_address]
    }
  }
  peers       = var.peers
  controllers = var.controllers
  latitude    = var.latitude
  longitude   = var.longitude
  replicas    = var.replicas
  settings    = var.settings
  has_keys    = var.has_keys
}

module "machine" {
  source   = "../../machine"
  for_each = local.slots

  cloud    = "azure"
  role     = "gateway"
  manifest = "package"
  objects  = { "region.yaml" = "gateways/${each.key}/region.yaml", "policy.yaml" = "policy.yaml", "regions.yaml" = "regions.yaml" }
  secrets  = concat(each.value.secrets, var.shared_secrets)
  environment = {
    STORE     = "${azurerm_storage_account.config.primary_blob_endpoint}${azurerm_storage_container.config.name}"
    IDENTITY  = azurerm_user_assigned_identity.slot[each.key].client_id
    DISK      = "nightside"
    DISK_PATH = "/dev/disk/azure/scsi1/lun10"
  }
  has_farewell = true
  extra_files  = var.log_workspace_id == null ? {} : local.collector_files
}

# Resources that outlive the machine

resource "azurerm_public_ip" "slot" {
  for_each            = local.slots
  name                = "nightside-${each.key}"
  location            = var.location
  resource_group_name = var.resource_group
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = [each.value.zone]
  tags                = local.tags
}

resource "azurerm_network_interface" "slot" {
  for_each                       = local.slots
  name                           = "nightside-${each.key}"
  location                       = var.location
  resource_group_name            = var.resource_group
  accelerated_networking_enabled = true
  tags                           = local.tags

  ip_configuration {
    name                          = "own"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = each.value.private_ip == null ? "Dynamic" : "Static"
    private_ip_address            = each.value.private_ip
    public_ip_address_id          = azurerm_public_ip.slot[each.key].id
  }
}

resource "azurerm_network_interface_security_group_association" "slot" {
  for_each                  = local.slots
  network_interface_id      = azurerm_network_interface.slot[each.key].id
  network_security_group_id = azurerm_network_security_group.gateways.id
}

resource "azurerm_managed_disk" "slot" {
  for_each                      = local.slots
  name                          = "nightside-${each.key}"
  location                      = var.location
  resource_group_name           = var.resource_group
  zone                          = each.value.zone
  storage_account_type          = "Premium_LRS"
  create_option                 = "Empty"
  disk_size_gb                  = var.disk_gib
  disk_encryption_set_id        = var.disk_encryption_set_id
  network_access_policy         = "DenyAll"
  public_network_access_enabled = false
  tags                          = local.tags
}

# The machine in it

resource "terraform_data" "generation" {
  for_each = local.slots
  input    = each.value.generation
}

resource "azurerm_linux_virtual_machine" "slot" {
  for_each                        = local.slots
  name                            = "nightside-${each.key}"
  computer_name                   = replace(each.key, ".", "-")
  location                        = var.location
  resource_group_name             = var.resource_group
  zone                            = each.value.zone
  size                            = var.machine_type
  source_image_id                 = var.machine_image
  admin_username                  = "operator"
  disable_password_authentication = true
  allow_extension_operations      = var.log_workspace_id != null
  encryption_at_host_enabled      = true
  custom_data                     = base64encode(module.machine[each.key].script)
  network_interface_ids           = [azurerm_network_interface.slot[each.key].id]
  tags                            = merge(local.tags, { "nightside-gateway" = each.key })

  admin_ssh_key {
    username   = "operator"
    public_key = var.ssh_public_key
  }

  os_disk {
    caching                = "ReadWrite"
    storage_account_type   = "Premium_LRS"
    disk_encryption_set_id = var.disk_encryption_set_id
  }

  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.slot[each.key].id]
  }

  # longer than a unit takes to stop, and the longest that Azure permits
  termination_notification {
    enabled = true
    timeout = "PT15M"
  }

  lifecycle {
    ignore_changes       = [custom_data, size, source_image_id, admin_ssh_key] # only the generation makes another one
    replace_triggered_by = [terraform_data.generation[each.key]]
  }

  # everything that the machine needs at boot
  depends_on = [
    azurerm_network_interface_security_group_association.slot,
    azurerm_role_assignment.objects,
    azurerm_role_assignment.secrets,
    azurerm_storage_blob.manifest,
    azurerm_storage_blob.package,
    azurerm_storage_blob.policy,
    azurerm_storage_blob.region_file,
    azurerm_storage_blob.table,
  ]
}

resource "azurerm_virtual_machine_data_disk_attachment" "slot" {
  for_each           = local.slots
  managed_disk_id    = azurerm_managed_disk.slot[each.key].id
  virtual_machine_id = azurerm_linux_virtual_machine.slot[each.key].id
  lun                = 10
  caching            = "None"
}
