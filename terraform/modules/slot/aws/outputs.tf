output "group" {
  description = "The auto scaling group's name."
  value       = aws_autoscaling_group.this.name
}

output "script" {
  description = "The script of its machine's first boot."
  value       = module.machine.script
}

output "policy" {
  description = "Its machine's permissions, as an IAM policy."
  value       = aws_iam_role_policy.this.policy
}
