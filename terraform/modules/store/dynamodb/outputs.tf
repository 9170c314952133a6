output "name" {
  description = "For `store.dynamodb.table`."
  value       = aws_dynamodb_table.this.name
}

output "arn" {
  description = "For the rights of who uses it."
  value       = aws_dynamodb_table.this.arn
}
