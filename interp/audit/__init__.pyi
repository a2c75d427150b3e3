"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp.audit.battery import AuditResult as AuditResult
from interp.audit.battery import audit as audit
from interp.audit.dynamics import FixedPoints as FixedPoints
from interp.audit.dynamics import fixed_points as fixed_points
from interp.audit.trial import THRESHOLDS as THRESHOLDS
from interp.audit.trial import Budget as Budget
