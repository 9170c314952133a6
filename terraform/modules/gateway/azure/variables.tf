variable "region" {
  type        = string
  description = "The mesh's name of the region, as in its policy file and certificates; usually Azure's own name."
}

variable "jurisdiction" {
  type        = string
  description = "The region's jurisdiction, spelt as in the policy files."
}

variable "location" {
  type        = string
  description = "Azure's name of the region."
}

variable "resource_group" {
  type        = string
  description = "The resource group of all resources."
}

variable "subnet_id" {
  type        = string
  description = "The subnet's id, such as `network/azure` makes."
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
    One for each gateway, by a short name appended to the region's: slot `a` of japaneast is gateway japaneasta. `zone` is an availability zone such as 1.
    `secrets` are URLs of secrets in the vault, without a version, that become files (see the README).
    `health_host` is a name in its certificate for clients that resolves to its own address; without one the certificate has to contain the address itself.
    Raising `generation` replaces its machine: raise one slot's at a time.
  END
  validation {
    condition     = length(var.slots) > 0 && alltrue([for name, _ in var.slots : can(regex("^[a-z0-9]{1,8}$", name))])
    error_message = "At least one slot; names are up to eight small letters and digits."
  }
  validation {
    condition     = alltrue([for slot in values(var.slots) : length(slot.secrets) > 0 && alltrue([for each in slot.secrets : can(regex("^https://[^/]+/secrets/[^/]+$", each))])])
    error_message = "Each slot has secrets of its own, URLs such as https://VAULT.vault.azure.net/secrets/NAME."
  }
  validation {
    condition     = max([for slot in values(var.slots) : slot.generation]...) - min([for slot in values(var.slots) : slot.generation]...) <= 1
    error_message = "Slots are replaced one at a time: generations differ by one at most."
  }
}

variable "shared_secrets" {
  type        = list(string)
  description = "URLs of secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "vault_id" {
  type        = string
  description = "The key vault of the secrets, with permissions by roles (RBAC). Each slot may read its own and the shared ones."
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image: a version in a gallery, or an image. It needs what modules/machine/README.md lists; nothing here looks one up."
  validation {
    condition     = can(regex("^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Compute/(images/[^/]+|galleries/[^/]+/images/[^/]+/versions/[0-9.]+)$", var.machine_image))
    error_message = "The id of an image, or of one version in a gallery."
  }
}

variable "machine_type" {
  type        = string
  description = "Azure's machine size, of the image's architecture. A gateway uses one core."
}

variable "ssh_public_key" {
  type        = string
  description = "Azure requires an SSH key for the machines' administrator. The firewall admits no SSH connection."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: its path on the machine that runs Terraform, and its SHA-256."
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "A SHA-256 is 64 hexadecimal digits."
  }
}

variable "policy_file" {
  type        = string
  description = "The region's residency policy, a file on the machine that runs Terraform. The table of regions that it names, `regions.yaml` beside it, is uploaded too."
}

variable "replicas" {
  type        = any
  description = "By gateway (such as us-east-1a), its engines, in the form of `replicas` of a region file."
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
  validation {
    condition     = alltrue([for peer in values(var.peers) : can(regex("^[0-9.]+:[0-9]+$", peer.address))])
    error_message = "A peer's address is IPv4:PORT: the firewall needs it."
  }
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
  validation {
    condition     = alltrue([for each in var.controllers : can(regex("^[0-9.]+:[0-9]+$", each))])
    error_message = "A controller's address is IPv4:PORT: the firewall needs it."
  }
}

variable "latitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
  validation {
    condition     = var.latitude >= -90 && var.latitude <= 90
    error_message = "A latitude is from -90 to 90."
  }
}

variable "longitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
  validation {
    condition     = var.longitude >= -180 && var.longitude <= 180
    error_message = "A longitude is from -180 to 180."
  }
}

variable "client_cidrs" {
  type        = list(string)
  description = "Networks of clients."
  default     = ["0.0.0.0/0"]
  validation {
    condition     = alltrue([for each in var.client_cidrs : can(cidrhost(each, 0))])
    error_message = "Networks such as 203.0.113.0/24."
  }
}

variable "engines" {
  type = object({
    cidrs = list(string)
    ports = optional(list(number), [8000])
  })
  description = "Networks of engines: gateways may connect only to these, to peers, to controllers and to Azure."
}

variable "disk_gib" {
  type        = number
  description = "Size of each slot's disk, which holds the last snapshot, usage and, if enabled, audit records."
  default     = 20
  validation {
    condition     = var.disk_gib >= 1 && floor(var.disk_gib) == var.disk_gib
    error_message = "The size is a whole number of GiB."
  }
}

variable "client_idle_timeout_min" {
  type        = number
  description = "How long the balancer keeps an idle connection, in minutes. A model may think for minutes before its first token."
  default     = 15
  validation {
    condition     = var.client_idle_timeout_min >= 4 && var.client_idle_timeout_min <= 100
    error_message = "Azure accepts 4 to 100."
  }
}

variable "disk_encryption_set_id" {
  type        = string
  description = "A disk encryption set with a key of your own; null: Azure's keys."
  default     = null
}

variable "log_workspace_id" {
  type        = string
  description = "The Log Analytics workspace for the machines' logs; null: they stay on the machines."
  default     = null
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
