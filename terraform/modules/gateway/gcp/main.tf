# A region's gateways in Google Cloud: one slot for each, with a name, addresses, a disk and secrets of its own, kept
# when the machine in it is replaced. A slot is a stateful managed group of one: a dead machine is recreated with all of
# them.

locals {
  slots   = { for name, slot in var.slots : "${var.region}${name}" => slot }
  prefix  = "nightside-${var.region}"
  labels  = merge(var.labels, { nightside-region = replace(var.region, ".", "-") })
  port    = 443 # the balancer does not map ports, and the unit may bind it
  clients = var.client_tls.kind == "files" ? google_compute_address.clients[0].address : google_compute_global_address.clients[0].address

  controller_ips = distinct([for each in var.controllers : split(":", each)[0]])
  peer_ips       = distinct([for each in values(var.peers) : split(":", each.address)[0]])
  addresses      = { for name, _ in local.slots : name => google_compute_address.slot[name].address }
  secrets = merge([
    for name, slot in local.slots : { for secret in concat(slot.secrets, var.shared_secrets) : "${name} ${secret}" => { slot = name, secret = secret } }
  ]...)
}

module "region_file" {
  source = "../../region_file"

  region       = var.region
  jurisdiction = var.jurisdiction
  client_port  = local.port
  gateways = {
    for name, slot in local.slots : name => {
      peer_address   = "${local.addresses[name]}:7070"
      health_host    = coalesce(slot.health_host, local.addresses[name])
      client_address = [local.clients]
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

  cloud    = "gcp"
  role     = "gateway"
  manifest = "package"
  objects  = { "region.yaml" = "gateways/${each.key}/region.yaml", "policy.yaml" = "policy.yaml", "regions.yaml" = "regions.yaml" }
  secrets  = concat(each.value.secrets, var.shared_secrets)
  environment = {
    STORE     = google_storage_bucket.config.name
    DISK      = "nightside"
    DISK_PATH = "/dev/disk/by-id/google-nightside"
  }
  has_farewell = false
  extra_files  = var.collector ? { "/etc/google-cloud-ops-agent/config.yaml" = local.collector_file } : {}
}

# Resources that outlive the machine

resource "google_compute_address" "slot" {
  for_each = local.slots
  name     = "nightside-${each.key}"
  region   = var.gcp_region
  labels   = local.labels
}

resource "google_compute_address" "inside" {
  for_each     = local.slots
  name         = "nightside-${each.key}-inside"
  region       = var.gcp_region
  address_type = "INTERNAL"
  subnetwork   = var.subnet
  labels       = local.labels
}

resource "google_compute_disk" "slot" {
  for_each = local.slots
  name     = "nightside-${each.key}"
  zone     = each.value.zone
  type     = "pd-balanced"
  size     = var.disk_gib
  labels   = merge(local.labels, { nightside-gateway = replace(each.key, ".", "-") })

  dynamic "disk_encryption_key" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      kms_key_self_link = disk_encryption_key.value
    }
  }
}

resource "google_service_account" "slot" {
  for_each     = local.slots
  account_id   = "ns-${each.key}"
  display_name = "Gateway ${each.key}"

  lifecycle {
    precondition {
      condition     = length("ns-${each.key}") <= 30
      error_message = "Google's accounts have names of up to 30 letters: ${each.key} makes a longer one."
    }
  }
}

# The machine in it

resource "terraform_data" "generation" {
  for_each = local.slots
  input    = each.value.generation
}

resource "google_compute_instance_template" "slot" {
  for_each                = local.slots
  name_prefix             = "nightside-${each.key}-"
  description             = "Gateway ${each.key}"
  machine_type            = var.machine_type
  metadata_startup_script = module.machine[each.key].script
  tags                    = [local.prefix]
  labels                  = merge(local.labels, { nightside-gateway = replace(each.key, ".", "-") })

  metadata = {
    enable-oslogin         = "TRUE"
    block-project-ssh-keys = "TRUE"
  }

  disk {
    boot         = true
    auto_delete  = true
    source_image = var.machine_image

    dynamic "disk_encryption_key" {
      for_each = var.kms_key == null ? [] : [var.kms_key]
      content {
        kms_key_self_link = disk_encryption_key.value
      }
    }
  }

  network_interface {
    network    = var.network
    subnetwork = var.subnet
    access_config {}
  }

  service_account {
    email  = google_service_account.slot[each.key].email
    scopes = ["cloud-platform"] # its roles limit its permissions
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  lifecycle {
    create_before_destroy = true
    ignore_changes        = all # only the generation makes another one, and with it another machine
    replace_triggered_by  = [terraform_data.generation[each.key]]
  }
}

resource "google_compute_instance_group_manager" "slot" {
  for_each           = local.slots
  name               = "nightside-${each.key}"
  base_instance_name = each.key
  zone               = each.value.zone

  version {
    instance_template = google_compute_instance_template.slot[each.key].self_link_unique
  }

  named_port {
    name = "clients"
    port = local.port
  }

  # addresses and disk are free only once the previous machine has ended
  update_policy {
    type                  = "PROACTIVE"
    minimal_action        = "REPLACE"
    replacement_method    = "RECREATE"
    max_surge_fixed       = 0
    max_unavailable_fixed = 1
  }

  auto_healing_policies {
    health_check      = google_compute_health_check.alive.id
    initial_delay_sec = 600
  }

  lifecycle {
    ignore_changes = [target_size] # the slot's instance is made by its own configuration below
  }
}

resource "google_compute_per_instance_config" "slot" {
  for_each                       = local.slots
  name                           = each.key
  zone                           = each.value.zone
  instance_group_manager         = google_compute_instance_group_manager.slot[each.key].name
  minimal_action                 = "NONE"
  most_disruptive_allowed_action = "REPLACE"
  remove_instance_on_destroy     = true

  preserved_state {
    disk {
      device_name = "nightside"
      source      = google_compute_disk.slot[each.key].id
      delete_rule = "NEVER"
      mode        = "READ_WRITE"
    }
    external_ip {
      interface_name = "nic0"
      auto_delete    = "NEVER"
      ip_address {
        address = google_compute_address.slot[each.key].self_link
      }
    }
    internal_ip {
      interface_name = "nic0"
      auto_delete    = "NEVER"
      ip_address {
        address = google_compute_address.inside[each.key].self_link
      }
    }
  }
}

# Liveness only: a draining gateway is not ready, and is left alone.
resource "google_compute_health_check" "alive" {
  name                = "${local.prefix}-alive"
  check_interval_sec  = 10
  timeout_sec         = 5
  unhealthy_threshold = 6

  https_health_check {
    port         = local.port
    request_path = "/health"
  }
}
