"""The exceptions that Maypole raises, under Horovod's names."""

from maypole.common.exceptions import (HorovodInternalError,
                                       HorovodVersionMismatchError,
                                       HostsUpdatedInterrupt)
