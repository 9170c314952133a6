variable "name" {
  type        = string
  description = "The mesh's name, a prefix of the resources' names."
  default     = "nightside"
  validation {
    condition     = can(regex("^[a-z0-9-]{1,24}$", var.name))
    error_message = "Up to 24 small letters, digits and dashes."
  }
}

variable "vpc_id" {
  type        = string
  description = "The network, such as `network/aws` makes."
}

variable "slots" {
  type = map(object({
    zone       = string
    subnet_id  = string
    private_ip = optional(string)
    secrets    = list(string)
    generation = optional(number, 1)
  }))
  description = <<-END
    One for each controller, by its name, such as controller-1. `secrets` are ARNs of secrets that it alone may read: tls/controller.pem, tls/controller.key and tls/roots.pem, as files of a JSON
    object. Raising `generation` replaces its machine; raise one at a time.
  END
  validation {
    condition     = length(var.slots) >= 2 && length(distinct([for slot in values(var.slots) : slot.zone])) >= 2
    error_message = "At least two controllers, in two zones: when the leader dies, another one takes over."
  }
  validation {
    condition     = alltrue([for name, slot in var.slots : can(regex("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", name)) && length(slot.secrets) > 0])
    error_message = "Names are small letters, digits and inner dashes, and each controller has a secret of its own."
  }
  validation {
    condition     = max([for slot in values(var.slots) : slot.generation]...) - min([for slot in values(var.slots) : slot.generation]...) <= 1
    error_message = "Controllers are replaced one at a time: generations differ by one at most."
  }
}

variable "shared_secrets" {
  type        = list(string)
  description = "ARNs of secrets that all controllers may read, such as one with `tls/gateways-ca.pem`: see `probe_ca`."
  default     = []
}

variable "secrets_kms_key_arn" {
  type        = string
  description = "The key that encrypts the secrets, if the account has its own."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image. It needs what modules/machine/README.md lists."
  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.machine_image))
    error_message = "An image's id is ami- and a number."
  }
}

variable "machine_type" {
  type        = string
  description = "Machine type of the image's architecture. No request goes through a controller, so a small one is enough."
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

variable "table" {
  type = object({
    name = string
    arn  = string
  })
  description = "The store, such as `store/dynamodb` makes."
}

variable "zone" {
  type = object({
    id   = string
    name = string
  })
  description = "The hosted zone, and the one name that clients know."
}

variable "regions_file" {
  type        = string
  description = "The table of regions, a file on the machine that runs Terraform; the same that the regions' policies name."
}

variable "aws_regions" {
  type        = map(string)
  description = "The nearest AWS region, for each region of the mesh with another name, such as those of other clouds: Route53 knows latency by AWS's regions only, and gateways' instances are looked for there."
  default     = {}
  validation {
    condition     = alltrue([for each in values(var.aws_regions) : can(regex("^[a-z]{2,3}(-[a-z]+)+-[0-9]$", each))])
    error_message = "AWS's regions have names such as eu-central-1."
  }
}

variable "closed_jurisdictions" {
  type        = map(list(string))
  description = "Jurisdictions whose clients are led only to gateways there, with their places: countries (DE), parts of them (US-CA), continents (continent:EU)."
  default     = {}
}

variable "health_checks" {
  type        = string
  description = "Route53's own health check of each address, besides the controllers': none, tcp or https. Each check costs money every month."
  default     = "https"
  validation {
    condition     = contains(["none", "tcp", "https"], var.health_checks)
    error_message = "The value is none, tcp or https."
  }
}

variable "probe_ca" {
  type        = bool
  description = "Do gateways' certificates for clients come from an authority of your own, tls/gateways-ca.pem of a secret? Otherwise the machine's own list of authorities has to contain it."
  default     = false
}

variable "recovery" {
  type        = string
  description = "The controllers' action on the machine of a gateway that is down: none, replace (by its group) or reboot. It applies only to machines with the tag nightside:gateway."
  default     = "replace"
  validation {
    condition     = contains(["none", "replace", "reboot"], var.recovery)
    error_message = "The value is none, replace or reboot."
  }
}

variable "gateways" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "All gateways of the mesh: `peers` of all regions' outputs. Only these may attach."
  default     = {}
  validation {
    condition     = alltrue([for each in values(var.gateways) : can(regex("^[0-9.]+:[0-9]+$", each.address))])
    error_message = "A gateway's address is IPv4:PORT: the firewall needs it."
  }
}

variable "settings" {
  type        = any
  description = "Further sections of the controllers' file, such as `decisions`; they override the module's."
  default     = {}
}

variable "disk_gib" {
  type        = number
  description = "Size of each controller's disk, which holds the record of orders."
  default     = 8
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own for disks, the bucket and logs; null: AWS's keys."
  default     = null
}

variable "collector" {
  type        = bool
  description = "Configure the CloudWatch agent of the machine image to send logs."
  default     = true
}

variable "log_days" {
  type        = number
  description = "How long CloudWatch keeps logs."
  default     = 365
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
