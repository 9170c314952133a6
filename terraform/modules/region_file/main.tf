# Region files of a region's gateways, as text: it makes nothing, and needs no provider.

locals {
  own = {
    for name, gateway in var.gateways : name => merge(
      {
        gateway      = name
        region       = var.region
        jurisdiction = var.jurisdiction
        policy       = "policy.yaml"
        replicas     = lookup(var.replicas, name, [])
        peers = concat(
          [
            for sibling, each in var.gateways : {
              gateway = sibling, region = var.region, jurisdiction = var.jurisdiction, address = each.peer_address
            } if sibling != name
          ],
          [
            for peer, each in var.peers : {
              gateway = peer, region = each.region, jurisdiction = each.jurisdiction, address = each.address
            } if !contains(keys(var.gateways), peer)
          ],
        )
        listen = {
          http  = "0.0.0.0:${var.client_port}"
          peers = "0.0.0.0:7070"
          admin = "127.0.0.1:9900"
          tls   = { certificate = "tls/clients.pem", key = "tls/clients.key" }
        }
        peering = { tls = { certificate = "tls/peers.pem", key = "tls/peers.key", roots = "tls/roots.pem" } }
        state   = { folder = "/var/lib/nightside" }
        limits  = { request_deadline = "10m", drain = "10m" } # the units and the clouds' hooks wait for longer than this
        reload  = { region_file = true }
        logging = { format = "json" }
      },
      var.has_keys ? { keys = "keys.yaml" } : {},
      length(var.controllers) == 0 ? {} : {
        control = merge(
          {
            controllers      = var.controllers
            client_addresses = gateway.client_address
            peer_address     = gateway.peer_address
            health_url       = "https://${gateway.health_host}:${var.client_port}/health"
          },
          var.latitude == null ? {} : { latitude = var.latitude, longitude = var.longitude },
        )
      },
    )
  }

  sections = {
    for name, own in local.own : name => merge(own, {
      for key, more in var.settings : key => try(merge(own[key], more), more)
    })
  }
}
