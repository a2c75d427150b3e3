"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from reports.ledger.book import Ledger as Ledger
from reports.ledger.book import make as make
from reports.ledger.book import write as write
from reports.ledger.claims import CLAIMS as CLAIMS
from reports.ledger.claims import PaperClaim as PaperClaim
