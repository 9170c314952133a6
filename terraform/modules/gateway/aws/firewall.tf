# Permitted sources: clients to the balancer, the balancer and controllers to the clients' port, peers to theirs.
# Permitted targets: engines, peers, controllers, and AWS over HTTPS.

resource "aws_security_group" "balancer" {
  name_prefix = "${local.prefix}-balancer-"
  description = "Clients to the balancer"
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.prefix}-balancer" })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = toset(var.client_cidrs)
  security_group_id = aws_security_group.balancer.id
  description       = "Clients"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "to_gateways" {
  security_group_id            = aws_security_group.balancer.id
  description                  = "Gateways"
  referenced_security_group_id = aws_security_group.gateways.id
  ip_protocol                  = "tcp"
  from_port                    = 8443
  to_port                      = 8443
  tags                         = local.tags
}

resource "aws_security_group" "gateways" {
  name_prefix = "${local.prefix}-gateways-"
  description = "Gateways"
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.prefix}-gateways" })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "from_balancer" {
  security_group_id            = aws_security_group.gateways.id
  description                  = "Clients, and the balancer's questions for /ready"
  referenced_security_group_id = aws_security_group.balancer.id
  ip_protocol                  = "tcp"
  from_port                    = 8443
  to_port                      = 8443
  tags                         = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "controllers" {
  for_each          = local.controller_ips
  security_group_id = aws_security_group.gateways.id
  description       = "A controller's questions for /health"
  cidr_ipv4         = "${each.value}/32"
  ip_protocol       = "tcp"
  from_port         = 8443
  to_port           = 8443
  tags              = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "peers" {
  for_each          = local.peer_ips
  security_group_id = aws_security_group.gateways.id
  description       = "A gateway of another region"
  cidr_ipv4         = "${each.value}/32"
  ip_protocol       = "tcp"
  from_port         = 7070
  to_port           = 7070
  tags              = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "siblings" {
  for_each          = local.slots
  security_group_id = aws_security_group.gateways.id
  description       = "Gateway ${each.key} of this region"
  cidr_ipv4         = "${local.addresses[each.key]}/32" # siblings use each other's own addresses
  ip_protocol       = "tcp"
  from_port         = 7070
  to_port           = 7070
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.gateways.id
  description       = "AWS: objects, secrets, logs"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "engines" {
  for_each          = { for pair in setproduct(var.engines.cidrs, var.engines.ports) : "${pair[0]}-${pair[1]}" => pair }
  security_group_id = aws_security_group.gateways.id
  description       = "Engines"
  cidr_ipv4         = each.value[0]
  ip_protocol       = "tcp"
  from_port         = each.value[1]
  to_port           = each.value[1]
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "peers" {
  for_each          = { for address in distinct([for peer in values(var.peers) : peer.address]) : address => split(":", address) }
  security_group_id = aws_security_group.gateways.id
  description       = "A gateway of another region"
  cidr_ipv4         = "${each.value[0]}/32"
  ip_protocol       = "tcp"
  from_port         = tonumber(each.value[1])
  to_port           = tonumber(each.value[1])
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "siblings" {
  for_each          = local.slots
  security_group_id = aws_security_group.gateways.id
  description       = "Gateway ${each.key} of this region"
  cidr_ipv4         = "${local.addresses[each.key]}/32"
  ip_protocol       = "tcp"
  from_port         = 7070
  to_port           = 7070
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "controllers" {
  for_each          = { for address in distinct(var.controllers) : address => split(":", address) }
  security_group_id = aws_security_group.gateways.id
  description       = "A controller"
  cidr_ipv4         = "${each.value[0]}/32"
  ip_protocol       = "tcp"
  from_port         = tonumber(each.value[1])
  to_port           = tonumber(each.value[1])
  tags              = local.tags
}
