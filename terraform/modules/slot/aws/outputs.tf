output "group" {
  description = "The auto scaling group's name."
  value       = aws_autoscaling_group.this.name
}

output "script" {
  description = "What its machine runs at its first boot."
  value       = module.machine.script
}

output "policy" {
  description = "What its machine may do, as an IAM policy."
  value       = aws_iam_role_policy.this.policy
}
