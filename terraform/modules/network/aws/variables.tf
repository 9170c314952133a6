variable "name" {
  type        = string
  description = "Prefix of the resources' names."
}

variable "cidr" {
  type        = string
  description = "The network's addresses."
  validation {
    condition     = can(cidrhost(var.cidr, 0)) && try(tonumber(split("/", var.cidr)[1]) <= 24, false)
    error_message = "An IPv4 network of /24 or larger, such as 10.20.0.0/20."
  }
}

variable "zones" {
  type        = list(string)
  description = "Availability zones: one public subnet each. Gateways in two or more zones survive the loss of one."
  validation {
    condition     = length(var.zones) >= 2 && length(distinct(var.zones)) == length(var.zones)
    error_message = "At least two zones, each once."
  }
}

variable "flow_log_role" {
  type        = string
  description = "ARN of a role that may write flow logs to CloudWatch; null: no flow logs."
  default     = null
}

variable "flow_log_group" {
  type        = string
  description = "ARN of the log group that flow logs go to, with `flow_log_role`."
  default     = null
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
