terraform {
  required_version = ">= 1.9" # validations that read other values

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

provider "aws" {
  region = var.base.region

  default_tags {
    tags = local.tags
  }
}
