# For clients alone: peers and controllers reach each slot by its own address. With `files` packets are passed on as
# they are; with `managed` Google's proxy terminates TLS and starts it anew.

resource "google_compute_address" "clients" {
  count  = var.client_tls.kind == "files" ? 1 : 0
  name   = "${local.prefix}-clients"
  region = var.gcp_region
  labels = local.labels
}

resource "google_compute_region_health_check" "ready" {
  count               = var.client_tls.kind == "files" ? 1 : 0
  name                = "${local.prefix}-ready"
  region              = var.gcp_region
  check_interval_sec  = 5
  timeout_sec         = 4
  healthy_threshold   = 2
  unhealthy_threshold = 2

  https_health_check {
    port         = local.port
    request_path = "/ready"
  }
}

resource "google_compute_region_backend_service" "clients" {
  count                           = var.client_tls.kind == "files" ? 1 : 0
  name                            = "${local.prefix}-clients"
  region                          = var.gcp_region
  protocol                        = "TCP"
  load_balancing_scheme           = "EXTERNAL"
  health_checks                   = [google_compute_region_health_check.ready[0].id]
  connection_draining_timeout_sec = 660 # running streams continue for as long as a drain

  dynamic "backend" {
    for_each = local.slots
    content {
      group          = google_compute_instance_group_manager.slot[backend.key].instance_group
      balancing_mode = "CONNECTION"
    }
  }

  # a draining gateway is not ready: its streams are left alone all the same
  connection_tracking_policy {
    tracking_mode                                = "PER_CONNECTION"
    connection_persistence_on_unhealthy_backends = "ALWAYS_PERSIST"
  }
}

resource "google_compute_forwarding_rule" "clients" {
  count                 = var.client_tls.kind == "files" ? 1 : 0
  name                  = "${local.prefix}-clients"
  region                = var.gcp_region
  load_balancing_scheme = "EXTERNAL"
  ip_protocol           = "TCP"
  ip_address            = google_compute_address.clients[0].id
  ports                 = [tostring(local.port)]
  backend_service       = google_compute_region_backend_service.clients[0].id
  labels                = local.labels
}

# A certificate of Google's

resource "google_compute_global_address" "clients" {
  count  = var.client_tls.kind == "managed" ? 1 : 0
  name   = "${local.prefix}-clients"
  labels = local.labels
}

resource "google_compute_managed_ssl_certificate" "clients" {
  count = var.client_tls.kind == "managed" ? 1 : 0
  name  = "${local.prefix}-${substr(sha256(join(" ", var.client_tls.domains)), 0, 8)}" # other domains need another certificate

  managed {
    domains = var.client_tls.domains
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_health_check" "ready" {
  count               = var.client_tls.kind == "managed" ? 1 : 0
  name                = "${local.prefix}-ready"
  check_interval_sec  = 5
  timeout_sec         = 4
  healthy_threshold   = 2
  unhealthy_threshold = 2

  https_health_check {
    port         = local.port
    request_path = "/ready"
  }
}

resource "google_compute_backend_service" "clients" {
  count                           = var.client_tls.kind == "managed" ? 1 : 0
  name                            = "${local.prefix}-clients"
  protocol                        = "SSL"
  port_name                       = "clients"
  load_balancing_scheme           = "EXTERNAL"
  timeout_sec                     = var.client_idle_timeout_s
  health_checks                   = [google_compute_health_check.ready[0].id]
  connection_draining_timeout_sec = 660

  dynamic "backend" {
    for_each = local.slots
    content {
      group           = google_compute_instance_group_manager.slot[backend.key].instance_group
      balancing_mode  = "UTILIZATION"
      max_utilization = 1
    }
  }
}

resource "google_compute_target_ssl_proxy" "clients" {
  count            = var.client_tls.kind == "managed" ? 1 : 0
  name             = "${local.prefix}-clients"
  backend_service  = google_compute_backend_service.clients[0].id
  ssl_certificates = [google_compute_managed_ssl_certificate.clients[0].id]
  proxy_header     = "NONE"
}

resource "google_compute_global_forwarding_rule" "clients" {
  count                 = var.client_tls.kind == "managed" ? 1 : 0
  name                  = "${local.prefix}-clients"
  load_balancing_scheme = "EXTERNAL"
  ip_protocol           = "TCP"
  ip_address            = google_compute_global_address.clients[0].id
  port_range            = "443"
  target                = google_compute_target_ssl_proxy.clients[0].id
  labels                = local.labels
}
