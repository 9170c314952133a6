output "files" {
  description = "By the gateway's name, its region file."
  value       = { for name, sections in local.sections : name => yamlencode(sections) }
}
