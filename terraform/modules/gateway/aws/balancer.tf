# For clients alone: peers and controllers reach each slot by its own address. It passes bytes on as they come.

resource "aws_eip" "clients" {
  for_each = { for slot in values(local.slots) : slot.zone => slot.subnet_id... }
  domain   = "vpc"
  tags     = merge(local.tags, { Name = "${local.prefix}-clients-${each.key}" })
}

resource "aws_lb" "clients" {
  name_prefix                      = "ns-"
  load_balancer_type               = "network"
  internal                         = false
  security_groups                  = [aws_security_group.balancer.id]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = var.deletion_protection
  tags                             = merge(local.tags, { Name = "${local.prefix}-clients" })

  dynamic "subnet_mapping" {
    for_each = { for slot in values(local.slots) : slot.zone => slot.subnet_id... }
    content {
      subnet_id     = subnet_mapping.value[0]
      allocation_id = aws_eip.clients[subnet_mapping.key].id
    }
  }
}

resource "aws_lb_target_group" "clients" {
  name_prefix            = "ns-"
  vpc_id                 = var.vpc_id
  target_type            = "instance"
  protocol               = var.client_tls.kind == "acm" ? "TLS" : "TCP"
  port                   = 8443
  preserve_client_ip     = true
  deregistration_delay   = 660 # running streams continue for as long as a drain
  connection_termination = false
  tags                   = merge(local.tags, { Name = "${local.prefix}-clients" })

  health_check {
    protocol            = "HTTPS"
    path                = "/ready"
    port                = "8443"
    matcher             = "200"
    interval            = 5
    timeout             = 4
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  # a draining gateway is not ready: its streams are left alone all the same
  target_health_state {
    enable_unhealthy_connection_termination = false
    unhealthy_draining_interval             = 660
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "clients" {
  load_balancer_arn        = aws_lb.clients.arn
  port                     = 443
  protocol                 = var.client_tls.kind == "acm" ? "TLS" : "TCP"
  certificate_arn          = var.client_tls.certificate_arn
  ssl_policy               = var.client_tls.kind == "acm" ? var.client_tls.policy : null
  tcp_idle_timeout_seconds = var.client_tls.kind == "acm" ? null : var.client_idle_timeout_s
  tags                     = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.clients.arn
  }
}
