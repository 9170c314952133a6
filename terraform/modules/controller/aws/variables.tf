variable "name" {
  type        = string
  description = "The mesh's, for the names of what is made."
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
    object. Raising `generation` has its machine replaced; raise one at a time.
  END
  validation {
    condition     = length(var.slots) >= 2 && length(distinct([for slot in values(var.slots) : slot.zone])) >= 2
    error_message = "Two controllers at least, in two zones: one leads, and another follows when it dies."
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
  description = "The key that the secrets are encrypted with, where that is one of the account's own."
  default     = null
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image. It needs what modules/machine/README.md lists."
  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.machine_image))
    error_message = "An image is called ami- and its number."
  }
}

variable "machine_type" {
  type        = string
  description = "Of the image's architecture. No request goes through a controller: a small one will do."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: where it lies on the machine that runs Terraform, and its SHA-256."
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
  description = "The table of regions, a file where Terraform runs; the same that the regions' policies name."
}

variable "aws_regions" {
  type        = map(string)
  description = "The AWS region that is nearest to one of the mesh's, for each that has another name, such as all of those of other clouds: Route53 tells latency by AWS's regions alone."
  default     = {}
  validation {
    condition     = alltrue([for each in values(var.aws_regions) : can(regex("^[a-z]{2,3}(-[a-z]+)+-[0-9]$", each))])
    error_message = "AWS's regions are called as eu-central-1 is."
  }
}

variable "closed_jurisdictions" {
  type        = map(list(string))
  description = "Jurisdictions whose clients are told of gateways there and of no others, with the places they are in: countries (DE), parts of them (US-CA), continents (continent:EU)."
  default     = {}
}

variable "health_checks" {
  type        = string
  description = "Route53 asks each address for its health, besides the controllers: none, tcp or https. Each check costs money every month."
  default     = "https"
  validation {
    condition     = contains(["none", "tcp", "https"], var.health_checks)
    error_message = "none, tcp or https."
  }
}

variable "probe_ca" {
  type        = bool
  description = "Do gateways' certificates for clients come from an authority of your own, tls/gateways-ca.pem of a secret? Else the machine's own list of authorities has to know it."
  default     = false
}

variable "recovery" {
  type        = string
  description = "What controllers may do with the machine of a gateway that is down: none, replace (its group does) or reboot. Only machines that carry the tag nightside:gateway."
  default     = "replace"
  validation {
    condition     = contains(["none", "replace", "reboot"], var.recovery)
    error_message = "none, replace or reboot."
  }
}

variable "gateways" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "All gateways of the mesh: `peers` of all regions' outputs. They alone may attach."
  default     = {}
  validation {
    condition     = alltrue([for each in values(var.gateways) : can(regex("^[0-9.]+:[0-9]+$", each.address))])
    error_message = "A gateway's address is IPv4:PORT: the firewall lets it in by that."
  }
}

variable "settings" {
  type        = any
  description = "Further sections of the controllers' file, such as `decisions`; what stands here wins."
  default     = {}
}

variable "disk_gib" {
  type        = number
  description = "Of each controller's disk, which holds the record of orders."
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
  description = "On everything."
  default     = {}
}
