variable "subscription_id" {
  type        = string
  description = "The subscription's id."
}

variable "existing_subnet_id" {
  type        = string
  description = "A subnet that is there; null: `cidr` says what is made."
  default     = null
}

variable "cidr" {
  type        = string
  description = "The addresses of a network to be made, such as 10.23.0.0/20, without `existing_subnet_id`."
  default     = null
  validation {
    condition     = (var.cidr != null) != (var.existing_subnet_id != null)
    error_message = "Either a cidr, or an existing_subnet_id."
  }
}

variable "mesh_folder" {
  type        = string
  description = "A folder with what the other roots said: REGION.peers.json for each region, and controllers.json. null: there is none, and the variables below say it."
  default     = null
}

variable "region" {
  type        = string
  description = "The mesh's name of the region, as its policy file and its certificates have it; Azure's own name, as a rule."
}

variable "jurisdiction" {
  type        = string
  description = "Whose law holds there, spelt as in the policy files."
}

variable "location" {
  type        = string
  description = "Azure's name of the region."
}

variable "resource_group" {
  type        = string
  description = "Where all of it is made."
}

variable "slots" {
  type = map(object({
    zone        = string
    private_ip  = optional(string)
    secrets     = list(string)
    health_host = optional(string)
    generation  = optional(number, 1)
  }))
  description = <<-END
    One for each gateway, by a short name that is put behind the region's: slot `a` of japaneast is gateway japaneasta. `zone` is an availability zone such as 1.
    `secrets` are URLs of secrets in the vault, without a version, that become files (see the README).
    `health_host` is a name that its certificate for clients holds and that leads to its own address; without one its address is used, which the certificate has to hold then.
    Raising `generation` has its machine replaced: raise one slot's at a time.
  END
}

variable "shared_secrets" {
  type        = list(string)
  description = "URLs of secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "vault_id" {
  type        = string
  description = "The key vault of the secrets, with rights by roles (RBAC). Each slot may read its own and the shared ones."
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image: a version of a gallery's, or an image. It needs what modules/machine/README.md lists; nothing here looks one up."
}

variable "machine_type" {
  type        = string
  description = "Azure's size, of the image's architecture. A gateway uses one core."
}

variable "ssh_public_key" {
  type        = string
  description = "Azure wants a key for the machines' administrator. The firewall lets nobody in by it."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: where it lies on the machine that runs Terraform, and its SHA-256."
}

variable "policy_file" {
  type        = string
  description = "The region's residency policy, a file where Terraform runs; `regions.yaml` beside it, the table of regions that it names, goes with it."
}

variable "replicas" {
  type        = any
  description = "By gateway (such as us-east-1a), its engines, as `replicas` of a region file has them."
  default     = {}
}

variable "settings" {
  type        = any
  description = "Further sections of the region files, such as `placement` or `dns_replicas`."
  default     = {}
}

variable "has_keys" {
  type        = bool
  description = "Is there a keys.yaml among the secrets? Without one a gateway refuses to serve beyond loopback, unless `settings` says `insecure`."
  default     = true
}

variable "peers" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "Gateways of all other regions: `peers` of their roots' outputs."
  default     = {}
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
}

variable "latitude" {
  type        = number
  description = "Where the region is, in degrees."
}

variable "longitude" {
  type        = number
  description = "Where the region is, in degrees."
}

variable "client_cidrs" {
  type        = list(string)
  description = "Networks of clients."
  default     = ["0.0.0.0/0"]
}

variable "engines" {
  type = object({
    cidrs = list(string)
    ports = optional(list(number), [8000])
  })
  description = "Where engines are: gateways may connect there, and nowhere else but to peers, controllers and Azure."
}

variable "disk_gib" {
  type        = number
  description = "Of each slot's disk: the last snapshot, usage, and audit records where there are any."
  default     = 20
}

variable "client_idle_timeout_min" {
  type        = number
  description = "How long the balancer keeps a connection on which nothing moves, in minutes. A model may think for minutes before its first token."
  default     = 15
}

variable "disk_encryption_set_id" {
  type        = string
  description = "A disk encryption set with a key of your own; null: Azure's keys."
  default     = null
}

variable "log_workspace_id" {
  type        = string
  description = "The Log Analytics workspace that the machines' log goes to; null: it stays on the machines."
  default     = null
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
