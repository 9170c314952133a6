# Permitted sources: clients, Google's health checks and controllers to the clients' port, peers to theirs. Permitted
# targets: engines, peers, controllers, and Google's own services over HTTPS.

resource "google_compute_firewall" "clients" {
  name          = "${local.prefix}-clients"
  network       = var.network
  description   = "Clients, health checks, and controllers' questions for /health"
  direction     = "INGRESS"
  source_ranges = distinct(concat(var.client_tls.kind == "files" ? var.client_cidrs : [], var.health_check_cidrs, [for ip in local.controller_ips : "${ip}/32"]))
  target_tags   = [local.prefix]

  allow {
    protocol = "tcp"
    ports    = [tostring(local.port)]
  }
}

resource "google_compute_firewall" "peers" {
  name          = "${local.prefix}-peers"
  network       = var.network
  description   = "Gateways"
  direction     = "INGRESS"
  source_ranges = concat([for ip in local.peer_ips : "${ip}/32"], [for ip in values(local.addresses) : "${ip}/32"])
  target_tags   = [local.prefix]

  allow {
    protocol = "tcp"
    ports    = ["7070"]
  }
}

resource "google_compute_firewall" "out" {
  for_each = merge(
    {
      services = { ranges = ["0.0.0.0/0"], ports = ["443"], what = "Google's services" }
      engines  = { ranges = var.engines.cidrs, ports = [for port in var.engines.ports : tostring(port)], what = "Engines" }
      siblings = { ranges = [for ip in values(local.addresses) : "${ip}/32"], ports = ["7070"], what = "Gateways of this region" }
    },
    length(var.peers) == 0 ? {} : {
      peers = { ranges = [for ip in local.peer_ips : "${ip}/32"], ports = distinct([for each in values(var.peers) : split(":", each.address)[1]]), what = "Gateways of other regions" }
    },
    length(var.controllers) == 0 ? {} : {
      controllers = { ranges = [for ip in local.controller_ips : "${ip}/32"], ports = distinct([for each in var.controllers : split(":", each)[1]]), what = "Controllers" }
    },
  )
  name               = "${local.prefix}-to-${each.key}"
  network            = var.network
  description        = each.value.what
  direction          = "EGRESS"
  destination_ranges = each.value.ranges
  target_tags        = [local.prefix]

  allow {
    protocol = "tcp"
    ports    = each.value.ports
  }
}

resource "google_compute_firewall" "nothing_else_out" {
  name               = "${local.prefix}-nothing-else-out"
  network            = var.network
  description        = "Denies egress that no other rule allows"
  direction          = "EGRESS"
  priority           = 65000
  destination_ranges = ["0.0.0.0/0"]
  target_tags        = [local.prefix]

  deny {
    protocol = "all"
  }
}
