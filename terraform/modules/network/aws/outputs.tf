output "vpc_id" {
  description = "The network's id."
  value       = aws_vpc.this.id
}

output "subnets" {
  description = "By zone, the id of its subnet."
  value       = { for zone, subnet in aws_subnet.this : zone => subnet.id }
  depends_on  = [aws_route.out, aws_route_table_association.this]
}
