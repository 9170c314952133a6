# The minimal network for gateways: a network with a public subnet in each zone and a way out. Teams with a network of
# their own leave this module out.

resource "aws_vpc" "this" {
  cidr_block           = var.cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = merge(var.tags, { Name = var.name })
}

# The default group is unused: it permits no traffic.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
  tags   = merge(var.tags, { Name = "${var.name}-unused" })
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = merge(var.tags, { Name = var.name })
}

resource "aws_subnet" "this" {
  for_each                = { for index, zone in var.zones : zone => index }
  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.cidr, 4, each.value)
  map_public_ip_on_launch = false # slots have addresses of their own
  tags                    = merge(var.tags, { Name = "${var.name}-${each.key}" })
}

resource "aws_route_table" "this" {
  vpc_id = aws_vpc.this.id
  tags   = merge(var.tags, { Name = var.name })
}

resource "aws_route" "out" {
  route_table_id         = aws_route_table.this.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "this" {
  for_each       = aws_subnet.this
  subnet_id      = each.value.id
  route_table_id = aws_route_table.this.id
}

# Traffic to S3 stays inside the network: it costs nothing and needs no internet gateway.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${data.aws_region.this.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.this.id]
  tags              = merge(var.tags, { Name = "${var.name}-s3" })
}

data "aws_region" "this" {}

resource "aws_flow_log" "this" {
  count                = var.flow_log_role == null ? 0 : 1
  vpc_id               = aws_vpc.this.id
  traffic_type         = "REJECT"
  log_destination      = var.flow_log_group
  log_destination_type = "cloud-watch-logs"
  iam_role_arn         = var.flow_log_role
  tags                 = merge(var.tags, { Name = var.name })
}
