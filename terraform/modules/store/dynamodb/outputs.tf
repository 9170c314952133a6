output "name" {
  description = "For `store.dynamodb.table`."
  value       = aws_dynamodb_table.this.name
}

output "arn" {
  description = "The table's ARN, for the permissions of its users."
  value       = aws_dynamodb_table.this.arn
}
