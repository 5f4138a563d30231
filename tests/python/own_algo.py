"""An algorithm that is of no installed plug-in."""

from outside.td3 import SPEC as SPEC
