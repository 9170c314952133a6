output "network" {
  description = "The network's id."
  value       = google_compute_network.this.id
}

output "subnet" {
  description = "The subnet's id."
  value       = google_compute_subnetwork.this.id
}
